"""Keys of clients, as their digests."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import astuple

from ..errors import ConfigError, StateUnavailable
from ..tenants.audit import HOUR, Deed, Times
from ..tenants.budgets import NO_BUDGET, Budget
from .accounts.audit import write_of
from .commits import Reading

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeyRecord:
    """A key. `ending`: its last four letters, by which its owner knows it. Times are in seconds since the epoch.
    `may`: its capabilities. What it may spend beside its tenant's budget, and how
    many of its inferlets may run at a time; None: no bound of its own."""

    id: str
    tenant: str
    name: str
    ending: str
    may: tuple[str, ...]
    created: float
    expires: float | None
    revoked: float | None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    cpu_seconds_per_hour: int | None = None
    max_inferlets: int | None = None

    @property
    def budget(self) -> Budget:
        return Budget(self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day, self.cpu_seconds_per_hour)

    def is_valid(self, now: float) -> bool:
        """Whether it can be used."""
        return self.revoked is None and (self.expires is None or now < self.expires)


COMPLAINT_SECONDS = 60.0
COLUMNS = ", ".join(KeyRecord.__dataclass_fields__)


class Keys:
    """The keys as a server knows them: all in memory, read anew when somebody has changed them. Belongs to one
    thread."""

    def __init__(self, reader: Reading) -> None:
        """Raises StateUnavailable."""
        self._reader = reader
        self._version = -1
        self._changed = False  # since the last look
        self._next_expiry = float("inf")
        self._next_complaint = 0.0
        self._by_digest: dict[bytes, KeyRecord] = {}
        self._read_changes(time.time())  # a server that cannot read its keys would be open to everybody

    def look(self) -> bool:
        """Whether one was made, was revoked or has expired since the last look."""
        self._read()
        changed, self._changed = self._changed, False
        return changed

    def _read(self) -> None:
        """Reads all anew if they have changed."""
        now = time.time()
        try:
            self._changed |= self._read_changes(now)
        except StateUnavailable as error:
            if now >= self._next_complaint:
                log.error("the keys cannot be read, so those that were read last count: %s", error)
                self._next_complaint = now + COMPLAINT_SECONDS

    def _read_changes(self, now: float) -> bool:
        found = self._reader.execute("SELECT value FROM counters WHERE name = 'keys'")
        version = next((value for (value,) in found), 0)
        if version == self._version and now < self._next_expiry:
            return False
        rows = self._reader.execute(f"SELECT digest, {COLUMNS} FROM keys")
        self._by_digest = {digest: _record(row) for digest, *row in rows}
        self._version = version  # now that they are known: a failure is made good at the next look
        coming = (one.expires for one in self._by_digest.values() if one.expires is not None and one.is_valid(now))
        self._next_expiry = min(coming, default=float("inf"))
        return True

    @property
    def exist(self) -> bool:
        """Whether one was ever made: a server whose keys have all been revoked is not open to everybody."""
        return bool(self._by_digest)

    def valid(self, now: float) -> set[str]:
        """The ids of those that can be used. `now`: seconds since the epoch."""
        return {one.id for one in self._by_digest.values() if one.is_valid(now)}

    def find(self, digest: bytes) -> KeyRecord | None:
        """The key with this digest, also one that was made a moment ago. The time that it takes says nothing about the
        keys that there are, since nobody can choose a digest."""
        if digest not in self._by_digest:
            self._read()
        return self._by_digest.get(digest)

    def named(self, id: str) -> KeyRecord | None:
        """The key with this id."""
        return next((one for one in self._by_digest.values() if one.id == id), None)


def add_key(
    database: sqlite3.Connection,
    tenant: str,
    name: str,
    digest: bytes,
    ending: str,
    may: Sequence[str],
    expires: float | None,
    budget: Budget = NO_BUDGET,
    max_inferlets: int | None = None,
) -> KeyRecord:
    """Keeps a new key. `expires`: seconds since the epoch. Raises ConfigError for the name of a valid one, which could
    not be revoked by it any more."""
    id_, bounds = f"key_{uuid.uuid4().hex[:12]}", (*astuple(budget), max_inferlets)
    record = KeyRecord(id_, tenant, name, ending, tuple(may), time.time(), expires, None, *bounds)
    values = (id_, tenant, name, ending, ",".join(may), record.created, expires, None, *bounds, digest)
    made = Deed(int(record.created // HOUR), tenant, "", "make a key", id_)
    with _changing(database):
        for other in list_keys(database):
            if other.name == name and other.is_valid(record.created):
                raise ConfigError(
                    f"{other.tenant} has a valid key {name!r}: give another name, or revoke that one first by "
                    f"`pie keys revoke {other.id}`"
                )
        database.execute(*write_of(made, Times(record.created, record.created)))
        places = ", ".join("?" * len(values))
        database.execute(f"INSERT INTO keys ({COLUMNS}, digest) VALUES ({places})", values)
    return record


def list_tenants(database: sqlite3.Connection) -> list[str]:
    """Those that the last server of the state served, by name; empty: there was none."""
    return [name for (name,) in database.execute("SELECT name FROM tenants ORDER BY name")]


def list_keys(database: sqlite3.Connection) -> list[KeyRecord]:
    """All that were made, oldest first."""
    return [_record(row) for row in database.execute(f"SELECT {COLUMNS} FROM keys ORDER BY created")]


def revoke_key(database: sqlite3.Connection, named: str) -> KeyRecord:
    """Ends a key that is given by its id, or by a name that one valid key has. Raises ConfigError."""
    now = time.time()
    with _changing(database):
        valid = [one for one in list_keys(database) if one.is_valid(now)]
        found = [one for one in valid if one.id == named] or [one for one in valid if one.name == named]
        if len(found) != 1:
            ids = ", ".join(one.id for one in found)
            several = f"several keys are called {named!r}, so give an id: {ids}"
            raise ConfigError(several if ids else f"no valid key {named!r}: see `pie keys list`")
        done = Deed(int(now // HOUR), found[0].tenant, "", "revoke a key", found[0].id)
        database.execute(*write_of(done, Times(now, now)))
        database.execute("UPDATE keys SET revoked = ? WHERE id = ?", (now, found[0].id))
    return found[0]


@contextlib.contextmanager
def _changing(database: sqlite3.Connection) -> Iterator[None]:
    """What the block writes becomes known to the server that uses the state. Raises ConfigError."""
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("INSERT INTO counters VALUES ('keys', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1")
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise ConfigError(f"the keys cannot be changed: {error}") from None
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _record(row: Sequence[object]) -> KeyRecord:
    id_, tenant, name, ending, may, *times = row
    return KeyRecord(id_, tenant, name, ending, tuple(filter(None, str(may).split(","))), *times)  # type: ignore[arg-type]
