"""What is known of inferlets after a restart: how each ended, its result, the end of its log; and their numbers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..texts import byte_size
from .commits import Reading, Write
from .writer import Writer

LINES = 200
"""The last lines of its log that are kept of each inferlet."""
LINE_CHARACTERS = 2000
"""What is kept of a line."""
ROW_BYTES = 300
"""What an inferlet counts beside its texts."""
LINE_BYTES = "(SELECT coalesce(sum(length(CAST(text AS BLOB))), 0) FROM lines WHERE lines.number = inferlets.number)"
"""The bytes of the lines of an inferlet."""
NUMBERS = 1000
"""Numbers are reserved by so many: those that a crash leaves over are left out."""
WAIT_SECONDS = 2.0
"""The longest that a start waits for what was lost to be written: a disk may be full."""
LOST = "the server ended before it"
FORGET = """
WITH RECURSIVE sums AS (
    SELECT tenant, sum(size) AS total FROM inferlets WHERE ended IS NOT NULL GROUP BY tenant
), shares AS (
    SELECT (?2 - (sum(total) OVER least - total)) / (count(*) OVER () - row_number() OVER least + 1) AS share
    FROM sums WINDOW least AS (ORDER BY total, tenant)
), going (tenant, number, much) AS (
    SELECT tenant, 0, total - (SELECT max(share) FROM shares) FROM sums
    UNION ALL
    SELECT one.tenant, one.number, much - one.size FROM going JOIN inferlets AS one ON one.number = (
        SELECT min(number) FROM inferlets WHERE tenant = going.tenant AND number > going.number AND ended IS NOT NULL
    ) WHERE much > 0
)
DELETE FROM inferlets WHERE number IN (
    SELECT number FROM inferlets WHERE ended < ?1 UNION ALL SELECT number FROM going
)
"""
"""Deletes what ended before a time, and the oldest of those tenants that have more than their share of so many bytes.
Shares are equal, but what a tenant leaves of its own goes to the others: so the largest `share` counts that is left for
each, if those who have least take theirs first. `going` has, row by row, the oldest of each tenant, until nothing is
too `much`: of all others only an index is read."""


@dataclass(frozen=True)
class InferletRecord:
    """An inferlet that has ended. Times are in seconds since the epoch."""

    number: int
    tenant: str
    program: str
    title: str
    host: int
    parent: str | None
    created: float
    status: str
    ended: float
    cpu_seconds: float
    result: str | None
    error: str | None


@dataclass(frozen=True)
class KeptLine:
    """A line of a log."""

    time: float
    stream: str
    text: str


COLUMNS = ", ".join(InferletRecord.__dataclass_fields__)


class LineBuffer:
    """Lines that wait for the next commit: the newest `LINES` of each inferlet, however many come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[tuple[int, KeptLine]]] = {}
        self._counts: dict[int, int] = {}

    def add(self, number: int, line: KeptLine) -> None:
        line = replace(line, text=line.text[:LINE_CHARACTERS])
        with self._lock:
            count = self._counts[number] = self._counts.get(number, -1) + 1
            self._waiting.setdefault(number, deque(maxlen=LINES)).append((count, line))

    def take_last(self, number: int) -> list[Write]:
        """Takes what waits of an inferlet of which no more lines come."""
        with self._lock:
            self._counts.pop(number, None)
            return _writes_of(number, self._waiting.pop(number, ()))

    def collect(self) -> list[Write]:
        """Takes what waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return [write for number, lines in waiting.items() for write in _writes_of(number, lines)]


def _writes_of(number: int, lines: Iterable[tuple[int, KeptLine]]) -> list[Write]:
    return [
        (
            "INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?, ?, ?)",
            (number, count % LINES, count, line.time, line.stream, line.text),
        )
        for count, line in lines
    ]


class InferletRecords:
    """Belongs to one thread, which reads by a connection of its own."""

    def __init__(self, writer: Writer, lines: LineBuffer, reader: Reading) -> None:
        """What ran when the server before ended is lost from now on."""
        self._writer = writer
        self._lines = lines
        self._reader = reader
        ((last,),) = reader.execute("SELECT coalesce(max(number), 0) FROM inferlets")
        reserved = [value for (value,) in reader.execute("SELECT value FROM counters WHERE name = 'inferlets'")]
        self._next: int = max(last + 1, *reserved, 1)
        self._reserved: int = self._next  # the first number that is not
        writer.put(
            (
                f"UPDATE inferlets SET status = 'lost', ended = ?, error = ?, size = ? + {LINE_BYTES} "
                "WHERE ended IS NULL",
                (time.time(), LOST, ROW_BYTES),
            )
        )
        self._reserve()
        writer.wait(WAIT_SECONDS)  # what is lost is found from now on

    # ---- numbers ----

    def next_number(self) -> int:
        """One that no inferlet of this state has had, nor will have after a crash."""
        number: int = self._next
        self._next += 1
        if self._next >= self._reserved:
            self._reserve()
        return number

    def _reserve(self) -> None:
        self._reserved += NUMBERS
        self._writer.put(_set_counter(self._reserved))

    # ---- what happens ----

    def launched(self, number: int, tenant: str, program: str, title: str, created: float) -> None:
        """An inferlet begins. This, and its end, survives the process from now on, unless the disk is full."""
        self._writer.put(
            (
                "INSERT INTO inferlets (number, tenant, program, title, host, created, status) "
                "VALUES (?, ?, ?, ?, 0, ?, 'running')",
                (number, tenant, program, title, created),
            )
        )

    def said(self, number: int, line: KeptLine) -> None:
        """It has a line in its log."""
        self._lines.add(number, line)
        self._writer.stir()

    def ended(self, record: InferletRecord) -> None:
        """It has ended."""
        size = ROW_BYTES + byte_size(record.result or "") + byte_size(record.error or "")
        self._writer.put(
            *self._lines.take_last(record.number),
            (
                "UPDATE inferlets SET host = ?, parent = ?, status = ?, ended = ?, cpu_seconds = ?, result = ?, "
                f"error = ?, size = ? + {LINE_BYTES} WHERE number = ?",
                (
                    *(record.host, record.parent, record.status, record.ended, record.cpu_seconds, record.result),
                    *(record.error, size, record.number),
                ),
            ),
        )

    def close(self) -> None:
        """No more numbers are needed: those that are left over come with the next start."""
        self._writer.put(_set_counter(self._next))

    # ---- look-ups ----

    def find(self, number: int, tenant: str | None = None) -> InferletRecord | None:
        """An inferlet of a tenant, or of any, that has ended, by its number."""
        rows = self._reader.execute(
            f"SELECT {COLUMNS} FROM inferlets WHERE number = ? AND ended IS NOT NULL AND tenant = coalesce(?, tenant)",
            (number, tenant),
        )
        return next((InferletRecord(*row) for row in rows), None)

    def newest(self, most: int) -> Iterator[InferletRecord]:
        """The last ones that have ended, oldest first; one by one, as all results together may be large."""
        numbers = self._reader.execute(
            "SELECT number FROM inferlets WHERE ended IS NOT NULL ORDER BY number DESC LIMIT ?", (most,)
        )
        return filter(None, (self.find(number) for (number,) in reversed([*numbers])))

    def lines(self, number: int) -> list[KeptLine]:
        """The end of its log, oldest line first."""
        rows = self._reader.execute(
            "SELECT time, stream, text FROM lines WHERE number = ? ORDER BY sequence", (number,)
        )
        return [KeptLine(*row) for row in rows]


def _set_counter(value: int) -> Write:
    return "INSERT OR REPLACE INTO counters VALUES ('inferlets', ?)", (value,)


def write_that_forgets(oldest: float, most_bytes: int) -> Write:
    """Deletes what ended before `oldest`, and the oldest beyond `most_bytes` of results, errors and logs, of the
    tenants of whom most is kept."""
    return FORGET, (oldest, most_bytes)
