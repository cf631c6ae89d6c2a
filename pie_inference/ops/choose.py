"""Which `Ops` serves which device."""

from __future__ import annotations

import torch

from .interface import Ops
from .torch_ops import TorchOps


def choose_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """The fastest that is available here."""
    return TorchOps(device, dtype)
