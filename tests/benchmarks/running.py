"""Runs a benchmark as its command line does, and checks what every one of them writes."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import Any

from benchmarks import __main__ as cli


def run(folder: Path, name: str, *options: str) -> list[dict[str, Any]]:
    """The rows that `python -m benchmarks NAME --json FILE` writes."""
    path = folder / "results" / f"{name}.json"
    assert cli.main([name, "--json", str(path), *options]) == 0
    return rows_of(name, path)


def rows_of(name: str, path: Path) -> list[dict[str, Any]]:
    """The rows of a report, which has what every one has."""
    written: dict[str, Any] = json.loads(path.read_text())
    assert written["benchmark"] == name
    assert written["commit"]
    assert set(written["machine"]) >= {"cpu", "cores", "memory_gb", "python", "packages", "load"}
    assert platform.node() not in json.dumps(written["machine"])
    rows: list[dict[str, Any]] = written["rows"]
    assert rows
    for row in rows:
        assert set(row) == set(rows[0])
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, int | float))
    return rows
