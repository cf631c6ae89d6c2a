"""How processes end, and processor time of a server's, by what they do. Needs Linux."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PARTS = {"paced_worker": "worker", "pie_inference.serving": "worker", "pie_control.application": "hosts"}
"""What a child process is, by a part of its command line."""
OTHERS = "others"
STOP_SECONDS = 10.0


async def stop(process: asyncio.subprocess.Process) -> None:
    """Asks a process to end, if it has not; kills it if that takes too long."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


async def run_group(words: Sequence[str], seconds: float | None = None, **options: Any) -> int | None:
    """Runs a process and returns its exit status; None: it took longer than `seconds`. However this ends, the process
    is asked to end before, and what it has started and left is killed."""
    process = await asyncio.create_subprocess_exec(*words, start_new_session=True, **options)
    try:
        return await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        return None
    finally:
        await stop(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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
