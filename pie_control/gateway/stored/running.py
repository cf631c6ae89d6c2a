"""An answer that is stored, while it is made: readers follow its events, each from where it wants."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ...durable.responses import ResponseRecord
from ...errors import Overloaded
from ...host_memory import TenantBytes
from ..refusal import Refused

MOST_EVENT_BYTES = 16 << 20
"""Bytes of the events of one answer that are kept: beyond, the oldest go, and none can be asked for later."""
EVENT_BYTES = 64
"""What an event counts beside its characters."""
SLACK = 16
"""Where they are too many, this part of the bound is free again."""
PIECE_CHARACTERS = 64 << 10
"""Characters of the events that a reader gets at a time."""


class Running:
    """`record` is what is stored of it by now; `error`: why it has no result. `memory`: that of all answers which are
    made, for their records and events. Where it has no room, the oldest events go, as where they are too many."""

    def __init__(self, record: ResponseRecord, memory: TenantBytes | None = None) -> None:
        """Raises Overloaded if there is no room for the record."""
        self.record = record
        self._memory = memory
        self._held = 0  # bytes, of that memory
        self._hold(record.size)
        self.error: Refused | None = None
        self.is_cancelled = self.is_over = False
        self._events: list[str] = []
        self._first = 0  # the number of the oldest event that is kept
        self._untold = 0  # events at the end that no reader gets before it is over
        self._size = 0
        self._news = asyncio.Event()

    @classmethod
    def over(cls, record: ResponseRecord) -> Running:
        """One that has ended."""
        running = cls(record)
        running._events.extend(record.events)
        running.is_over = True
        return running

    @property
    def count(self) -> int:
        """How many events have come."""
        return self._first + len(self._events)

    def add(self, event: str, is_last: bool = False) -> None:
        """An event has come. `is_last`: readers get it, and what may come behind it, when the answer is stored: they go
        on from it at once."""
        self._events.append(event)
        self._untold += is_last or self._untold > 0
        self._size += len(event) + EVENT_BYTES
        if self._size > MOST_EVENT_BYTES:
            self._drop_oldest(MOST_EVENT_BYTES - MOST_EVENT_BYTES // SLACK)
        try:
            self._hold(self.record.size + self._size)
        except Overloaded:
            self._drop_oldest(self._held - self.record.size)
        self._tell()

    def _drop_oldest(self, most: int) -> None:
        """Until there are no more bytes than this, or one event is left."""
        count = 0
        while self._size > most and count < len(self._events) - 1:
            self._size -= len(self._events[count]) + EVENT_BYTES
            count += 1
        del self._events[:count]
        self._first += count
        self._hold(min(self._held, self.record.size + self._size))

    def _hold(self, size: int) -> None:
        """Raises Overloaded if there is no room for more."""
        if self._memory is None:
            return
        if size > self._held:
            self._memory.hold(self.record.tenant, size - self._held)
        elif size < self._held:
            self._memory.release(self.record.tenant, self._held - size)
        self._held = size

    def ended(self, body: str, ended: float) -> ResponseRecord:
        """What has to be stored when it is over; readers hear of it by `finish`."""
        kept = self.record.streamed and not self._first
        events = tuple(self._events) if kept else ()
        return replace(self.record, body=body, ended=ended, request=b"", streamed=kept, events=events)

    def finish(self, record: ResponseRecord, error: Refused | None = None) -> None:
        """What it came to is stored, as this record."""
        self._hold(0)
        self.record, self.error, self.is_over = record, error, True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_end(self) -> None:
        """Waits until it is over, and stored."""
        while not self.is_over:
            await self._news.wait()

    async def after(self, number: int) -> list[str]:
        """The first events from this number on, one at least; none: it is over. Raises Refused if they are not kept."""
        while (end := self.count - self._untold) <= number and not self.is_over:
            await self._news.wait()
        if number < self._first:
            raise Refused(400, f"the events before {self._first} are not kept: the answer is too long", "events_gone")
        found, size = list[str](), 0
        for place in range(number - self._first, (self.count if self.is_over else end) - self._first):
            found.append(self._events[place])
            size += len(found[-1]) + EVENT_BYTES
            if size >= PIECE_CHARACTERS:
                break
        return found
