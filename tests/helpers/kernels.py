"""Whether this machine can run the compiled kernels."""

from __future__ import annotations

import pytest

from pie_inference.cpu_kernels import build
from pie_inference.errors import KernelsUnavailable

ISAS = ("auto", "avx2", "avx512") if build.has_tiles() else ("auto", "avx2")
"""The values of `WorkerOptions.max_isa` that give different kernels."""


def _can_run() -> bool:
    try:
        build._flags_of_cpu("auto")
    except KernelsUnavailable:
        return False
    return True


needs_kernels = pytest.mark.skipif(not _can_run(), reason="the kernels need a CPU with AVX2 or NEON")
