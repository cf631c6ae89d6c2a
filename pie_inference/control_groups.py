"""What the control groups of this process leave it, as containers and systemd set them: cores and memory.

Version 2 has one tree of groups, version 1 one for each kind of resource. A limit of a group holds for all below it, so
the least one on the way to the root counts. A container sees its own group as the root.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that this process may use: those on which it may run, and no more than its control groups give it time
    for."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas())]))


def memory_limits() -> Iterator[int]:
    """Bytes that each group with a limit may have."""
    for group in _groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # there is none of this name, or it is "max"
                yield int((group / name).read_text())


def memory_left() -> Iterator[int]:
    """Bytes below the limit of each group that has one. Cached files do not count as used."""
    for group in _groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file "),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        ):
            with suppress(OSError, ValueError, StopIteration):
                lines = (group / "memory.stat").read_text().splitlines()
                dropped = next(int(line.split()[1]) for line in lines if line.startswith(cached))
                yield max(0, int((group / limit).read_text()) - int((group / used).read_text()) + dropped)


def _quotas() -> Iterator[float]:
    """Cores' worth of time that each group has, where there is a limit."""
    for group in _groups("cpu"):
        with suppress(OSError, ValueError):  # "max" is not a number
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if float(quota) > 0:
                yield float(quota) / float(period)


def _groups(kind: str) -> Iterator[Path]:
    """The folders of the groups of this process for a kind of resource, from its own to the root."""
    lines: list[str] = []
    with suppress(OSError):
        lines = MEMBERSHIP.read_text().splitlines()
    for _, kinds, path in (line.split(":", 2) for line in lines):
        if kinds and kind not in kinds.split(","):
            continue
        root = GROUPS / kind if kinds else GROUPS
        own = root / path.lstrip("/")
        yield from (each for each in (own, *own.parents) if each == root or root in each.parents)
