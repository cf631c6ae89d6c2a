"""How many threads compute."""

from __future__ import annotations

from ..control_groups import usable_cores

SMALL_MODEL_BYTES = 64 << 20
"""Below this size of the weights, a second core helps the control process more than it helps a wave."""


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
