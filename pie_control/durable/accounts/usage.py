"""What each tenant and each of its keys has used, day by day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

from ...tenants.budgets import DAY
from ...tenants.meters import Usage
from ..commits import Reading, Write
from ..writer import Writer

MOST_DAYS = 400
"""Days for which usage is kept."""


@dataclass(frozen=True)
class UsageRecord:
    """One day of UTC (`2026-01-31`). `key`: id of the key; "": a token, or nothing, was shown. `requests`: launches by
    clients; `prompt_tokens`: inputs of forwards, but for steps of decode runs; `generated_tokens`: those steps."""

    day: str
    tenant: str
    key: str
    requests: int
    prompt_tokens: int
    generated_tokens: int
    cpu_seconds: float


class UsageRecords:
    """Belongs to one thread, but for `since`."""

    def __init__(self, writer: Writer, reader: Reading, reader_of_all: Reading) -> None:
        """`reader_of_all`: for any thread."""
        self._writer = writer
        self._reader = reader
        self._reader_of_all = reader_of_all

    def write(self, day: int, some: Iterable[tuple[str, str, Usage]]) -> None:
        """Writes all that each tenant and key has used so far on a day, which is counted since the epoch."""
        writes: list[Write] = [
            (
                "INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)",
                (day, tenant, key, one.requests, one.prompt_tokens, one.generated_tokens, one.cpu_seconds),
            )
            for tenant, key, one in some
        ]
        if writes:
            self._writer.put(*writes)

    def of_day(self, day: int) -> Mapping[tuple[str, str], Usage]:
        """By tenant and key."""
        rows = self._reader.execute("SELECT * FROM usage WHERE day = ?", (day,))
        return {(tenant, key): Usage(*counts) for _, tenant, key, *counts in rows}

    def since(self, day: int, tenant: str | None = None) -> list[UsageRecord]:
        """From a day since the epoch on, oldest first; of a tenant, or of all. Takes time: call this in a thread."""
        return list_usage(self._reader_of_all, day, tenant)


def list_usage(database: Reading, day: int, tenant: str | None = None) -> list[UsageRecord]:
    """From a day since the epoch on, oldest first; of a tenant, or of all."""
    rows = database.execute(
        "SELECT * FROM usage WHERE day >= ? AND tenant = coalesce(?, tenant) ORDER BY day, tenant, key", (day, tenant)
    )
    return [UsageRecord(day_of(day).isoformat(), *rest) for day, *rest in rows]


def day_of(day: int) -> date:
    """The date of a day since the epoch."""
    return datetime.fromtimestamp(day * DAY, UTC).date()


def write_that_forgets(now: float) -> Write:
    """Deletes what is older than MOST_DAYS. `now`: seconds since the epoch."""
    return "DELETE FROM usage WHERE day < ?", (int(now // DAY) - MOST_DAYS,)
