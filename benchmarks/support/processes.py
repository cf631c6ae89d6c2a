"""Processor time of a server's processes, by what they do. Needs Linux."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PARTS = {"paced_worker": "worker", "pie_inference.serving": "worker", "pie_control.application": "hosts"}
"""What a child process is, by a part of its command line."""
OTHERS = "others"


def processor_seconds(pid: int) -> Mapping[str, float]:
    """Seconds that the process `pid` ("control") and its descendants have used so far, by part."""
    used = defaultdict(float, control=_seconds(pid))
    for child in _descendants(pid):
        with contextlib.suppress(OSError):  # it may end meanwhile
            used[_part(child)] += _seconds(child)
    return used


def count_parts(pid: int) -> Mapping[str, int]:
    """How many processes of each part a server has."""
    counts: Counter[str] = Counter()
    for child in _descendants(pid):
        with contextlib.suppress(OSError):
            counts[_part(child)] += 1
    return counts


def of_part(pid: int, part: str) -> list[int]:
    """The processes of a part of a server."""
    found = []
    for child in _descendants(pid):
        with contextlib.suppress(OSError):
            if _part(child) == part:
                found.append(child)
    return found


def _descendants(pid: int) -> Iterator[int]:
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def _threads(pid: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from Path(f"/proc/{pid}/task").iterdir()


def _part(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text()
    return next((part for text, part in PARTS.items() if text in words), OTHERS)


def _seconds(pid: int) -> float:
    """Of its threads that live: in nanoseconds, unlike /proc/PID/stat."""
    total = 0
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9
