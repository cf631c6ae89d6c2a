"""Inferlets as the state keeps them, and as they come back from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ..config import InferletLimits
from ..durable.inferlets import InferletRecord, InferletRecords, KeptLine
from ..host_memory import TenantBytes
from ..inferlets.events import Ended, LogLine
from ..programs.store import Program
from ..tenants.tenant import Standing, Tenant
from .entry import Entry


class RecordKeeper:
    """Writes what happens to inferlets, and makes entries of those that ended under a server before."""

    def __init__(self, records: InferletRecords, limits: InferletLimits, mail: TenantBytes) -> None:
        self._records = records
        self._limits = limits
        self._mail = mail
        self.next_number = records.next_number

    def launched(self, entry: Entry) -> None:
        program = entry.program
        self._records.launched(entry.number, entry.standing.tenant.name, program.hash, program.title, entry.created)

    def said(self, number: int, line: LogLine) -> None:
        self._records.said(number, KeptLine(line.time, line.stream, line.text))

    def ended(self, entry: Entry, event: Ended) -> None:
        tenant, program = entry.standing.tenant.name, entry.program
        record = InferletRecord(
            *(entry.number, tenant, program.hash, program.title, entry.host, entry.parent, entry.created),
            *(event.status, time.time(), entry.cpu_seconds, event.result, event.error),
        )
        self._records.ended(record)

    def find(self, number: int, tenant: str | None) -> Entry | None:
        """An inferlet of a tenant, or of any (None), that has ended. Of others nothing is read."""
        record = self._records.find(number, tenant)
        return self._entry(record) if record is not None else None

    def newest(self, most: int) -> Iterator[Entry]:
        """The last ones that have ended, oldest first."""
        return map(self._entry, self._records.newest(most))

    def _entry(self, record: InferletRecord) -> Entry:
        program = Program(record.program, record.title, "", "python", 0, Path(), record.tenant)
        standing = Standing(Tenant(record.tenant))
        entry = Entry(record.number, program, self._limits, _nobody, _nobody, standing, self._mail)
        entry.host, entry.parent, entry.cpu_seconds = record.host, record.parent, record.cpu_seconds
        lines = [
            LogLine(inferlet=entry.id, time=one.time, stream=one.stream, text=one.text)
            for one in self._records.lines(record.number)
        ]
        end = Ended(inferlet=entry.id, status=record.status, result=record.result, error=record.error)
        entry.come_back(record.created, record.ended, lines, end)
        return entry


def _nobody(*_: object) -> None:
    """It has ended: nobody hears of messages to it."""
