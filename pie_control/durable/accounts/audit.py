"""Who did what, as the state keeps it: within bounds, the same of an hour in one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...tenants.audit import Deed, Times
from ..commits import Reading, Write

MOST_ROWS = 100_000
"""Rows that are kept; the oldest go first."""
TRIM_EACH = 5000
"""Rows after which it is looked whether there are too many."""
COLUMNS = "first, last, count, tenant, key, action, subject"


@dataclass(frozen=True)
class AuditRecord:
    """What one key or tenant did within an hour, `count` times; `first` and `last` are in seconds since the epoch.
    `key`: id of the key; "": a token, or nothing, was shown."""

    first: float
    last: float
    count: int
    tenant: str
    key: str
    action: str
    subject: str


def write_of(deed: Deed, times: Times) -> Write:
    """Adds to the row of a deed."""
    return (
        "INSERT INTO audit (hour, tenant, key, action, subject, first, last, count) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (hour, tenant, key, action, subject) "
        "DO UPDATE SET last = excluded.last, count = count + excluded.count",
        (*deed, times.first, times.last, times.count),
    )


class AuditWrites:
    """Belongs to the thread that writes."""

    def __init__(self) -> None:
        self._since_trim = TRIM_EACH

    def of(self, deeds: Mapping[Deed, Times]) -> list[Write]:
        """Writes deeds, and deletes the oldest rows where there may be too many."""
        writes = [write_of(deed, times) for deed, times in deeds.items()]
        self._since_trim += len(writes)
        if writes and self._since_trim >= TRIM_EACH:
            self._since_trim = 0
            writes.append(("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (MOST_ROWS,)))
        return writes


def list_audit(database: Reading, most: int, tenant: str | None = None) -> list[AuditRecord]:
    """The last rows, oldest first; of a tenant, or of all."""
    rows = database.execute(
        f"SELECT {COLUMNS} FROM audit WHERE tenant = coalesce(?, tenant) ORDER BY number DESC LIMIT ?", (tenant, most)
    )
    return [AuditRecord(*row) for row in rows][::-1]
