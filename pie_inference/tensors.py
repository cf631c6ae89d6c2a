"""Arrays of the protocol to tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .errors import BatchError
from .protocol import Array


def index_tensor(numbers: Array, size: int, what: str) -> Tensor:
    """Indices into something of `size` as int64 on the CPU. Raises BatchError where one is out of range."""
    if len(numbers) and not 0 <= (highest := int(numbers.view(np.uint32).max())) < size:
        wrong = highest if highest < 2**31 else int(numbers.min())
        raise BatchError(f"{what} {wrong} does not exist; they are 0 to {size - 1}")
    return torch.from_numpy(numbers.astype(np.int64))


def tensor(numbers: Array, dtype: np.dtype[np.generic] | type[np.generic]) -> Tensor:
    """A copy of an array as a tensor on the CPU (arrays of a message are read-only, tensors cannot be)."""
    return torch.from_numpy(numbers.astype(dtype))
