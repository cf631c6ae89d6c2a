"""Uploads many small arrays in one copy, because a copy costs the host more than the bytes cost the bus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..protocol import Array

ALIGNMENT = 16
"""Alignment in bytes. Triton compiles a kernel again for pointers with another alignment."""

TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array in the buffer."""

    offset: int  # bytes
    dtype: np.dtype[np.generic]
    capacity: int  # elements


class PackedUpload:
    """A buffer on the device for named arrays. Its tensors never move, so a CUDA graph may hold them."""

    def __init__(self, places: Mapping[str, ArrayPlace], num_bytes: int, device: torch.device) -> None:
        self._places = places
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.tensors = {name: self._view(place) for name, place in places.items()}

    def _view(self, place: ArrayPlace) -> Tensor:
        end = place.offset + place.capacity * place.dtype.itemsize
        return self._buffer[place.offset : end].view(TORCH_DTYPES[place.dtype.name])

    def fill(self, arrays: Mapping[str, Array]) -> None:
        """Uploads arrays, each up to the capacity of its place; the elements behind an array's end are undefined.

        Each upload uses new pinned memory, because the copy before may not have run yet; torch reuses that memory once
        the copy has run. Nothing waits.
        """
        ends = {name: self._places[name].offset + array.nbytes for name, array in arrays.items()}
        used = max(ends.values(), default=0)
        staging = torch.empty(used, dtype=torch.uint8, pin_memory=self._buffer.is_cuda)
        host = staging.numpy()
        for name, array in arrays.items():
            offset = self._places[name].offset
            host[offset : ends[name]] = np.ascontiguousarray(array).view(np.uint8)
        self._buffer[:used].copy_(staging, non_blocking=True)


def make_room(sizes: Mapping[str, tuple[str, int]], device: torch.device) -> PackedUpload:
    """A buffer with room for arrays, each with its dtype and capacity, in this order."""
    places, end = {}, 0
    for name, (kind, capacity) in sizes.items():
        dtype = np.dtype(kind)
        places[name] = ArrayPlace(end, dtype, capacity)
        end += -(-capacity * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return PackedUpload(places, end, device)


def upload_arrays(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """The arrays as tensors on the device."""
    room = make_room({name: (array.dtype.name, len(array)) for name, array in arrays.items()}, device)
    room.fill(arrays)
    return room.tensors
