"""Instruction sets of a CPU that a worker leaves unused, so that one machine can stand for another. Imports no torch,
which reads its part of the environment when it is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping

LIMITS: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
"""What torch and the libraries in it read, for each value of `WorkerOptions.max_isa`. Our own kernels are compiled for
no more than that (`cpu_kernels/build.py`)."""


def limit_isa(name: str) -> None:
    """Makes torch keep to `WorkerOptions.max_isa` in this process and its children; torch must not be imported yet."""
    os.environ.update(LIMITS[name])
