"""Says whether Triton's kernels can run on a device. Imports triton only if there is a GPU, on which a kernel is
tried."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess

import torch

LEAST_CAPABILITY = (8, 0)
"""Least compute capability of a GPU: it has bfloat16 matrix products."""


def is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def why_unavailable(device: torch.device) -> str | None:
    """Why Triton's kernels cannot run on a device, as the end of a sentence; None: they can."""
    if not is_installed():
        return "the package triton is not installed"
    if device.type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted else "on a CPU it runs only in Triton's interpreter, with TRITON_INTERPRET=1"
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "it needs a GPU of compute capability 8.0 or more"
    return _why_broken(device)


@functools.cache
def _why_broken(device: torch.device) -> str | None:
    """Why a kernel that does nothing does not run; None: it does. At its first launch Triton compiles a part of itself
    with the C compiler and Python's headers, which not all machines have."""
    try:
        triton = importlib.import_module("triton")
        triton.jit(_do_nothing)[(1,)](torch.zeros(1, device=device))
    except Exception as error:  # of compilers, files and drivers, of which each has its own
        return f"its kernels do not compile or run here ({_told(error)}); docs/gpu.md says what it needs"
    return None


def _do_nothing(numbers):  # type: ignore[no-untyped-def]  # Triton's compiler reads annotations
    """A kernel."""


def _told(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} failed, and has said why above"
    return f"{type(error).__name__}: {error}"[:300]
