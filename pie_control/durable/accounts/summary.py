"""What a state folder has, told without changing it."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from ..database import BUSY_SECONDS, FILE, check_exists, holder, unusable
from ..journal import NAME as JOURNAL

BOUNDS = ("state_seconds", "state_bytes", "response_seconds", "response_bytes")
"""Counters: what the last server keeps, `--state-days`, `--state-bytes`, `--response-days` and `--response-bytes`."""
OLDEST = {
    "inferlets": "min(created)",
    "lines": "min(time)",
    "keys": "min(created)",
    "usage": "min(day) * 86400.0",
    "responses": "min(created)",
    "audit": "min(first)",
}
"""When the oldest record of a table was made, in seconds since the epoch."""


@dataclass(frozen=True)
class Table:
    """`oldest`: seconds since the epoch; None: there is no record, or none has a time."""

    name: str
    rows: int
    oldest: float | None


@dataclass(frozen=True)
class Summary:
    """`server`: the process that has the folder; None: none. `sizes`: bytes of files, by name. `schema`: the version of
    the tables. `bounds`: those of BOUNDS that are known."""

    file: str
    server: int | None
    schema: int
    sizes: dict[str, int]
    tables: list[Table] = field(default_factory=list)
    bounds: dict[str, int] = field(default_factory=dict)


def summarize(folder: Path) -> Summary:
    """What there is now, also while a server uses it. Raises ConfigError."""
    path = folder / FILE
    check_exists(folder)
    names = (FILE, f"{FILE}-wal", JOURNAL)
    sizes = {name: (folder / name).stat().st_size for name in names if (folder / name).exists()}
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN")
            (schema,) = database.execute("PRAGMA user_version").fetchone()
            summary = Summary(str(path), holder(folder), schema, sizes)
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"):
                rows, oldest = database.execute(f"SELECT count(*), {OLDEST.get(name, 'NULL')} FROM {name}").fetchone()
                summary.tables.append(Table(name, rows, oldest))
            counters = dict(database.execute("SELECT name, value FROM counters").fetchall())
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    summary.bounds.update({name: counters[name] for name in BOUNDS if name in counters})
    return summary
