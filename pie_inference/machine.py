"""What the machine offers: device, number format, free memory."""

from __future__ import annotations

import os

import torch

from .checkpoint import Checkpoint
from .errors import ConfigError

SMALL_MODEL = 200_000_000  # parameters up to which a CPU serves float32: exact, and fast enough


def choose_device(name: str) -> torch.device:
    """`name` is of `config.DEVICES`. Raises ConfigError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine or this torch has no CUDA device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """`name` is of `config.DTYPES`."""
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16
    fast_bfloat16 = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast_bfloat16 and checkpoint.num_parameters() > SMALL_MODEL else torch.float32


def free_bytes(device: torch.device) -> int:
    """Memory of the device that nobody uses."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
