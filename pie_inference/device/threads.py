"""How many threads compute."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")

SMALL_MODEL_BYTES = 64 << 20
"""Below this size of the weights, a second core helps the control process more than it helps a wave."""


def usable_cores() -> int:
    """Cores that this process may use: those on which it may run, and no more than its control groups give it time
    for."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """Cores' worth of time that each control group above this process has, where there is a limit."""
    for group in _own_groups():
        try:
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if float(quota) > 0:
                yield float(quota) / float(period)
        except (OSError, ValueError):  # "max" is not a number: there is no limit
            continue


def _own_groups() -> Iterator[Path]:
    """The folders of this process's control groups for time, from its own up to the root: version 2 has one tree,
    version 1 one for each kind of resource. A container sees its own group as the root."""
    try:
        lines = [line.split(":", 2) for line in OWN_CGROUP.read_text().splitlines()]
    except OSError:
        return
    for _, kinds, path in (line for line in lines if len(line) == 3):
        if kinds and "cpu" not in kinds.split(","):
            continue
        root = CGROUPS / "cpu" if kinds else CGROUPS
        own = root / path.lstrip("/")
        yield from (each for each in (own, *own.parents) if each == root or root in each.parents)


def default_threads(weight_bytes: int) -> int:
    """The default number of threads: one for a small model; else all cores but one, which the control process and the
    inferlets need, and at least two if there are two cores.

    Measured on 2 cores, whole system, 2 threads against 1, both sleeping while they wait: random Llama of 160M
    parameters 1.25 times as fast at 8 sequences and 1.45 times at 32; the demo model (18 MB in float32) half as fast at
    1 to 32, though 1.4 times as fast in a worker that has both cores to itself.
    """
    if weight_bytes < SMALL_MODEL_BYTES:
        return 1
    cores = usable_cores()
    return max(min(cores, 2), cores - 1)


def threads_of_rank(total: int, ranks: int) -> int:
    """The threads of one rank out of `total`: ranks compute in lockstep and would wait for each other if they shared
    cores."""
    return max(1, total // ranks)
