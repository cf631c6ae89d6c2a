"""What one server keeps in its state folder."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from ..tenants.audit import AuditTrail
from .accounts.audit import AuditRecord, AuditWrites, list_audit
from .accounts.programs import ProgramRecords
from .accounts.summary import BOUNDS
from .accounts.usage import UsageRecords, write_that_forgets
from .commits import Write, size_of
from .database import FILE, hold, is_held, open_database, own_folder, shrink, unusable
from .inferlets import InferletRecords, LineBuffer
from .inferlets import write_that_forgets as forgets_inferlets
from .journal import NAME as JOURNAL
from .journal import Journal
from .keys import Keys
from .responses import DAY, FORGET_TRIES, Responses
from .responses import write_that_forgets as forgets_responses
from .writer import Reader, Writer

NONE = "none"
"""Stands for no folder: nothing outlives the server but its programs."""
MOST = 2**62
"""The largest number in a table, as good as no bound."""
FORGET_SECONDS = 3600.0
"""Between two looks for what is too old or too much."""
FORGET_PART = 16
"""There is a look, too, when so large a part of the bytes that may be kept has come."""
KEEP = "INSERT OR REPLACE INTO counters VALUES (?, ?)"
LAST_LOOK = "SELECT coalesce((SELECT value FROM counters WHERE name = 'looked'), ?)"
"""The time of the last look, in seconds since the epoch: the next one an hour later goes by a day more at most, so that
a clock which is set ahead does not make everything too old at once."""


class State:
    """Belongs to one thread, and holds its folder until it is closed."""

    def __init__(
        self, folder: Path, days: float, most_bytes: int, responses: tuple[float, int] = (30.0, 64 << 20)
    ) -> None:
        """`days`, `most_bytes`: how long inferlets that have ended are kept, and how much of them; `responses`: the
        same of stored answers of each tenant. Raises ConfigError, StateUnavailable."""
        self._keep = days, most_bytes
        self._response_days = responses[0]
        self._next_look = 0.0
        self._since_look = 0  # bytes
        self._lines = LineBuffer()
        self.audit = AuditTrail(lambda: self._writer.stir())
        self._audit_writes = AuditWrites()
        self.folder = folder = own_folder(folder)
        self._lock = hold(folder)
        try:
            database = open_database(folder)
            shrink(database)
            (self._looked,) = database.execute(LAST_LOOK, (time.time(),)).fetchone()
            self._writer = Writer(database, folder / FILE, Journal(folder / JOURNAL), self._collect, self._prepare)
            self._reader, self._reader_of_all = (Reader(folder, self._writer) for _ in range(2))
            self.keys = Keys(self._reader)
        except (OSError, sqlite3.Error) as error:
            self._lock.close()
            raise unusable(folder / JOURNAL, error) from None
        except BaseException:
            self._lock.close()
            raise
        self.programs = ProgramRecords(self._writer, self._reader)
        self.responses = Responses(self._writer, self._reader_of_all, *responses)
        self.inferlets = InferletRecords(self._writer, self._lines, self._reader)
        self.usage = UsageRecords(self._writer, self._reader, self._reader_of_all)
        bounds = zip(BOUNDS, (days * DAY, most_bytes, responses[0] * DAY, responses[1]), strict=True)
        self._writer.put(*((KEEP, (name, int(min(bound, MOST)))) for name, bound in bounds))

    def _prepare(self) -> None:
        """The file was removed, perhaps with all that was beside it."""
        own_folder(self.folder)
        if not is_held(self.folder, self._lock):
            before, self._lock = self._lock, hold(self.folder)
            before.close()

    def _collect(self, waiting: int) -> list[Write]:
        lines = [*self._lines.collect(), *self._audit_writes.of(self.audit.take())]
        self._since_look += waiting + size_of(lines)
        is_time = time.monotonic() >= self._next_look
        if not is_time and self._since_look < self._keep[1] // FORGET_PART:
            return lines
        if is_time:
            self._next_look, self._looked = time.monotonic() + FORGET_SECONDS, self._looked + DAY
        self._since_look, self._looked = 0, min(time.time(), self._looked)
        (days, most), now = self._keep, self._looked
        forgets = write_that_forgets(now), forgets_responses(now - self._response_days * DAY)
        return [*lines, forgets_inferlets(now - days * DAY, most), *forgets, (KEEP, ("looked", int(now)))]

    def tell_tenants(self, names: Iterable[str]) -> None:
        """Keeps whom the server serves from now on: who makes keys may see whether there is such a tenant."""
        self._writer.put(("DELETE FROM tenants", ()), *(("INSERT INTO tenants VALUES (?)", (name,)) for name in names))

    def read_audit(self, most: int) -> list[AuditRecord]:
        """The last that is known of who did what, oldest first. Takes time: call this in a thread."""
        return list_audit(self._reader_of_all, most)

    @property
    def trouble(self) -> str:
        """A sentence if it cannot be written or read now; empty if all is well."""
        if reason := self._writer.trouble:
            return f"the state cannot be written, so a restart may forget what ends now: {reason}"
        if reason := self._reader.trouble or self._reader_of_all.trouble:
            return f"the state cannot be read, so not all that it has is found: {reason}"
        return ""

    def close(self) -> None:
        """Writes what is left, and lets go of the folder. Idempotent."""
        if not self._lock.closed:
            self.inferlets.close()
            self._writer.put((FORGET_TRIES, ()))
            self._writer.close()
            self._reader.close()
            self._reader_of_all.close()
            self._lock.close()
