"""Stored answers of served requests: what was asked, the answer, and the events of its stream."""

from __future__ import annotations

import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from ..texts import byte_size
from .commits import Reading, Write, commit
from .database import database_in_memory
from .writer import Writer

DAY = 86400.0
ROW_BYTES = 300
"""What a response counts beside its texts."""
SLACK = 64
"""The sizes of a tenant's responses are added up once for so large a part of their bound."""
MOST_RECENT, MOST_RECENT_BYTES = 100, 64 << 20
"""Those that are kept in memory while the database does not take them."""


@dataclass(frozen=True)
class ResponseRecord:
    """An answer that is stored. Times are in seconds since the epoch; `ended`: None while it is made. `inferlet`: the
    identifier of what makes it; `background`: its client did not wait; `streamed`: there are events, or will be;
    `previous`: the answer that it goes on from. `request_id`: the `answer_id` of the request; `request`: its body,
    while it is made (only `request_of` reads it); `input`: JSON, what was asked; `body`: JSON, the answer as far as it
    is known; `events`: of its stream, once it has ended. `hidden`: it was deleted, and is kept for those that go on
    from it. `key`: id of the key that has asked; empty: none has. `tries`: servers that began it again, and were
    killed."""

    tenant: str
    id: str
    inferlet: str
    route: str
    request_id: str
    created: float
    ended: float | None
    background: bool
    streamed: bool
    previous: str
    request: bytes
    input: str
    body: str
    events: tuple[str, ...]
    hidden: bool = False
    key: str = ""
    tries: int = 0

    @cached_property
    def size(self) -> int:
        """In bytes, as its bounds count it."""
        texts = byte_size(self.input) + byte_size(self.body) + sum(map(byte_size, self.events))
        return ROW_BYTES + len(self.request) + texts


class AtOnce:
    """Writes into a database that is in memory, and closes it when nobody has this object any more."""

    trouble = ""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        weakref.finalize(self, database.close)

    def put(self, *writes: Write, then: Callable[[], None]) -> None:
        commit(self._database, writes, 0)
        then()

    @classmethod
    def responses(cls, days: float, most_bytes: int) -> Responses:
        """Those of a server without a state."""
        database = database_in_memory()
        return Responses(cls(database), database, days, most_bytes)


COLUMNS = ", ".join(ResponseRecord.__dataclass_fields__)
PLACES = ", ".join("?" for _ in ResponseRecord.__dataclass_fields__)
NO_REQUEST = {"request": "x''"}
NO_TEXTS = {**NO_REQUEST, "input": "''", "body": "''", "events": "x'5b5d'"}
"""What is read in place of columns that may be large."""
HIDE = "UPDATE responses SET hidden = 1, request = x'', events = x'5b5d', size = ? WHERE tenant = ? AND id = ?"
COUNT_TRIES = "UPDATE responses SET tries = tries + 1 WHERE ended IS NULL AND background"
FORGET_TRIES = "UPDATE responses SET tries = 0 WHERE ended IS NULL"
"""A server that ends by itself was not killed by what it made."""
FORGET = """
WITH RECURSIVE needless (id, previous) AS (
    SELECT id, previous FROM responses WHERE tenant = ?1 AND id = ?2
    AND NOT EXISTS (SELECT 1 FROM responses WHERE tenant = ?1 AND previous = ?2 AND previous <> '')
    UNION
    SELECT one.id, one.previous FROM needless JOIN responses AS one ON one.tenant = ?1 AND one.id = needless.previous
    WHERE one.hidden AND
    (SELECT count(*) FROM responses AS after WHERE tenant = ?1 AND after.previous = one.id AND after.previous <> '') = 1
)
DELETE FROM responses WHERE tenant = ?1 AND id IN (SELECT id FROM needless)
"""
"""Deletes a response that none goes on from, and the hidden ones before it that no other one needs."""
MOST_BEFORE = 1000
"""Answers before one that live as long as that one does."""
USE = f"""
INSERT INTO response_uses (tenant, id, used)
WITH RECURSIVE needed (id, previous) AS (
    SELECT id, previous FROM responses WHERE tenant = ?1 AND id = ?2
    UNION
    SELECT one.id, one.previous FROM needed JOIN responses AS one ON one.tenant = ?1 AND one.id = needed.previous
    LIMIT {MOST_BEFORE + 1}
)
SELECT ?1, id, ?3 FROM needed WHERE true ON CONFLICT DO UPDATE SET used = max(used, excluded.used)
"""
"""A response, and with it those that it goes on from, is used at a time."""
TOO_MUCH = """
DELETE FROM responses WHERE tenant = ?1 AND id IN (
    SELECT id FROM (
        SELECT one.id, sum(one.size) OVER (ORDER BY used DESC, one.ended DESC, one.id DESC) AS total
        FROM response_uses AS use JOIN responses AS one INDEXED BY responses_by_size USING (tenant, id)
        WHERE use.tenant = ?1 AND one.ended IS NOT NULL
    ) WHERE total > ?2
)
"""
"""Deletes the responses of a tenant, beyond so many bytes, that were not used for the longest time."""
TOO_OLD = """
DELETE FROM responses WHERE ended < ?1 AND NOT EXISTS (
    SELECT 1 FROM response_uses AS use WHERE use.tenant = responses.tenant AND use.id = responses.id AND used >= ?1
)
"""
"""Deletes the responses that were not used since a time."""


class Responses:
    """Written by one thread and read by any. Those of a tenant have a bound in bytes, beyond which those go that were
    not used for the longest time. A response is used when it is made, and when one is made that goes on from it,
    directly or not."""

    def __init__(self, writer: Writer | AtOnce, reader: Reading, days: float, most_bytes: int) -> None:
        """`days`: how long they are kept after they were used last; `most_bytes`: of those of one tenant."""
        self._writer = writer
        self._reader = reader
        self._days = days
        self._most_bytes = most_bytes
        self._room: dict[str, int] = {}  # bytes, by tenant, until sizes are added up again
        self._recent: dict[tuple[str, str], ResponseRecord] = {}  # the oldest comes first
        self._recent_bytes = 0

    def put(self, record: ResponseRecord, then: Callable[[], None]) -> None:
        """Stores what is known by now. `then` is called when that is on its way to the disk, or could not be
        written."""
        told = {**record.__dict__, "events": msgspec.json.encode(record.events)}
        values = [told[name] for name in ResponseRecord.__dataclass_fields__]
        write = f"INSERT OR REPLACE INTO responses ({COLUMNS}, size) VALUES ({PLACES}, ?)", (*values, record.size)
        forget = self._writes_that_forget(record) if record.ended is not None else ()
        use = USE, (record.tenant, record.id, record.ended or record.created)
        self._put((record.tenant, record.id), record, (write, use, *forget), then)

    def delete(self, record: ResponseRecord, then: Callable[[], None]) -> None:
        """Forgets it. What others need that go on from it is kept for them, until the last of them is deleted."""
        key = record.tenant, record.id
        hidden = replace(record, request=b"", events=(), hidden=True)
        self._put(key, hidden, ((HIDE, (hidden.size, *key)), (FORGET, key)), then)

    def _put(
        self,
        key: tuple[str, str],
        record: ResponseRecord,
        writes: tuple[Write, ...],
        then: Callable[[], None],
    ) -> None:
        def done() -> None:
            if not self._writer.trouble and self._recent.get(key) is record:
                self._drop_recent(key)
            then()

        self._drop_recent(key)
        self._recent[key] = record
        self._recent_bytes += record.size
        while len(self._recent) > MOST_RECENT or (self._recent_bytes > MOST_RECENT_BYTES and len(self._recent) > 1):
            self._drop_recent(next(iter(self._recent)))
        self._writer.put(*writes, then=done)

    def _drop_recent(self, key: tuple[str, str]) -> None:
        before = self._recent.pop(key, None)
        self._recent_bytes -= before.size if before is not None else 0

    def find(self, tenant: str, id: str) -> ResponseRecord | None:
        """A response of a tenant; None, too, if it was deleted. A large one takes time: call this in a thread."""
        found = self.find_kept(tenant, id)
        return None if found is None or found.hidden else found

    def find_kept(self, tenant: str, id: str) -> ResponseRecord | None:
        """One that may be hidden."""
        key = tenant, id
        if (recent := self._recent.get(key)) is not None:
            return recent
        use = "SELECT used FROM response_uses WHERE tenant = ?1 AND id = ?2"
        where = f"WHERE tenant = ?1 AND id = ?2 AND (ended IS NULL OR ({use}) >= ?3)"
        return next(self._read(where, *key, time.time() - self._days * DAY), None)

    def unfinished(self) -> list[ResponseRecord]:
        """Those that were being made when the server before ended, oldest first, without their texts: all of these may
        be more than the memory has."""
        return list(self._read("WHERE ended IS NULL AND NOT hidden ORDER BY created", left_out=NO_TEXTS))

    def request_of(self, tenant: str, id: str) -> bytes:
        """The body of the request of one that is not finished; empty: there is none."""
        query = "SELECT request FROM responses WHERE tenant = ? AND id = ? AND ended IS NULL"
        return next((body for (body,) in self._reader.execute(query, (tenant, id))), b"")

    def count_tries(self, then: Callable[[], None]) -> None:
        """Those of the background begin again. `then` is called as by `put`."""
        self._writer.put((COUNT_TRIES, ()), then=then)

    def _read(
        self, where: str, *values: str | float, left_out: Mapping[str, str] = NO_REQUEST
    ) -> Iterator[ResponseRecord]:
        columns = ", ".join(left_out.get(name, name) for name in ResponseRecord.__dataclass_fields__)
        for row in [*self._reader.execute(f"SELECT {columns} FROM responses {where}", values)]:
            told = dict(zip(ResponseRecord.__dataclass_fields__, row, strict=True))
            told["events"] = msgspec.json.decode(told["events"])
            yield msgspec.convert(told, ResponseRecord, strict=False)

    def _writes_that_forget(self, record: ResponseRecord) -> tuple[Write, ...]:
        """They leave that part of the bound free, so it holds until the sizes are added up again."""
        tenant, slack = record.tenant, self._most_bytes // SLACK
        most = self._most_bytes - slack
        room = self._room.get(tenant, -1) - record.size
        self._room[tenant] = room if room >= 0 else slack
        if room >= 0:
            return ()
        return ((TOO_MUCH, (tenant, most)),)


def write_that_forgets(oldest: float) -> Write:
    """Deletes what was not used since a time."""
    return TOO_OLD, (oldest,)
