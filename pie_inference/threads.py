"""How many threads compute."""

from __future__ import annotations

import os


def default_threads() -> int:
    """All cores but one, which the control process and its inferlets need.

    Threads that share a core with something else make every parallel operation wait for the last of them: on 2 cores
    beside a busy process, 2 threads made waves 2 to 10 times as long where they spin, and no shorter where they sleep.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)
