"""Says whether Triton's kernels can run on a device. Imports no triton."""

from __future__ import annotations

import importlib.util
import os

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
    return None
