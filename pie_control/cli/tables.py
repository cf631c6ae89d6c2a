"""Plain tables, and what stands in them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from .terminal import one_line

T = TypeVar("T")


def format_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under their headings, columns aligned to the left. Cells have no control characters: guests and clients
    choose some of them."""
    lines = [columns, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def listed(
    options: argparse.Namespace, columns: Sequence[str], found: Sequence[T], row: Callable[[T], Sequence[str]]
) -> str:
    """What was found as a table, or with `--json` all fields of it."""
    if options.json:
        return json.dumps(found, indent=2, default=asdict)
    return format_table(columns, map(row, found))


def standing(info: Mapping[str, Any]) -> str:
    """What an inferlet does, in a line."""
    if info["ended"] is not None:
        return f"{info['id']} has ended ({info['status']})"
    if not info.get("waits_for"):
        return f"{info['id']} computes, or has not begun"
    seconds = max(0.0, time.time() - info["waits_since"])
    return one_line(f"{info['id']} waits for {info['waits_for']}, since {seconds:.1f} s")


def waiting(info: Mapping[str, Any]) -> str:
    """What an inferlet waits for, and how long already; "" if it does not wait."""
    if not info.get("waits_for"):
        return ""
    return f"{info['waits_for']}, {max(0.0, time.time() - info['waits_since']):.1f} s"


def moment(seconds: float) -> str:
    """A time since the epoch, as it is here, to the minute; "" where it is not known (0)."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""
