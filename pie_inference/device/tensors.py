"""Arrays of the protocol to tensors, and tensors between host and device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import BatchError
from ..protocol import Array


def index_tensor(numbers: Array, size: int, what: str) -> Tensor:
    """Indices into something of `size` as int64 on the CPU. Raises BatchError where one is out of range."""
    if len(numbers) and not 0 <= (highest := int(numbers.view(np.uint32).max())) < size:
        wrong = highest if highest < 2**31 else int(numbers.min())
        raise BatchError(f"{what} {wrong} does not exist; they are 0 to {size - 1}")
    return torch.from_numpy(numbers.astype(np.int64))


def tensor(numbers: Array, dtype: np.dtype[np.generic] | type[np.generic]) -> Tensor:
    """A copy of an array as a tensor on the CPU (arrays of a message are read-only, tensors cannot be)."""
    return torch.from_numpy(numbers.astype(dtype))


def upload(host: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, without waiting for what runs there: a copy from pageable memory would wait."""
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def upload_together(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """As `upload` for several int64 tensors, in one copy."""
    if device.type == "cpu":
        return list(parts)
    uploaded = upload(torch.cat([part.reshape(-1) for part in parts]), device)
    pieces = torch.split(uploaded, [part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def download(values: Tensor) -> Tensor:
    """A tensor on the CPU, without waiting: on a GPU its numbers are there once the stream has come to this point."""
    if values.device.type != "cuda":
        return values.cpu()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
