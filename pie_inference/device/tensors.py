"""Converts arrays of the protocol to tensors, and copies tensors between host and device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import BatchError
from ..protocol import Array


def index_tensor(numbers: Array, size: int, what: str) -> Tensor:
    """Indices as int64 on the CPU. Raises BatchError if one is not in 0 to `size` - 1; `what` names it."""
    if len(numbers) and not 0 <= (highest := int(numbers.view(np.uint32).max())) < size:
        wrong = highest if highest < 2**31 else int(numbers.min())
        raise BatchError(f"{what} {wrong} does not exist; they are 0 to {size - 1}")
    return torch.from_numpy(numbers.astype(np.int64))


def tensor(numbers: Array, dtype: np.dtype[np.generic] | type[np.generic]) -> Tensor:
    """A copy of an array as a tensor on the CPU (arrays of a message are read-only, tensors cannot be)."""
    return torch.from_numpy(numbers.astype(dtype))


def widened(values: Tensor) -> Tensor:
    """In float32, or in float64 if they are in it."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def upload(host: Tensor, device: torch.device) -> Tensor:
    """Copies a CPU tensor to `device` without waiting for its work: a copy from pageable memory would wait."""
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def upload_together(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Uploads several int64 tensors in one copy, like `upload`."""
    if device.type == "cpu":
        return list(parts)
    host = torch.empty(sum(part.numel() for part in parts), dtype=torch.int64, pin_memory=device.type == "cuda")
    torch.cat([part.reshape(-1) for part in parts], out=host)
    uploaded = host.to(device, non_blocking=True)
    pieces = torch.split(uploaded, [part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def download(values: Tensor) -> Tensor:
    """Copies a tensor to the CPU without waiting: from a GPU, its numbers arrive once the stream has reached this
    point."""
    if values.device.type != "cuda":
        return values.cpu()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
