"""A file of safetensors that is read, not memory-mapped: one that is shortened meanwhile, as by somebody who copies a
new version over it, is an error here. A mapped one would end the whole worker (SIGBUS)."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Annotated, NamedTuple, Self

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

MOST_HEADER = 16 << 20
"""Bytes: the names, shapes and places of about 100,000 tensors."""
LENGTH = struct.Struct("<Q")

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
"""Number formats that can be read, by their names in safetensors."""

Count = Annotated[int, Meta(ge=0, lt=1 << 48)]


class TensorFileError(Exception):
    """The file is no safetensors, or not whole; says why."""


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[list[Count], Meta(max_length=8)]
    data_offsets: tuple[Count, Count]


_header = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)


class StoredTensor(NamedTuple):
    """A tensor by its file's header. `format`: a name in safetensors. `start`: its first byte in the file."""

    shape: list[int]
    format: str
    start: int
    nbytes: int


class TensorFile:
    """The tensors of one file by name; used in `with`. Raises OSError, TensorFileError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        try:
            self.tensors = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._file.close()

    def _read_header(self) -> dict[str, StoredTensor]:
        size = os.fstat(self._file.fileno()).st_size
        length = int(LENGTH.unpack(self._file.read(LENGTH.size).ljust(LENGTH.size, b"\0"))[0])
        first = LENGTH.size + length
        if size < LENGTH.size or first > size:
            raise TensorFileError(f"it has {size} bytes, fewer than its header: it is cut off, or no safetensors")
        if length > MOST_HEADER:
            raise TensorFileError(f"its header has {length} bytes, more than {MOST_HEADER}")
        try:
            header = _header.decode(self._file.read(length))
            header.pop("__metadata__", None)
            entries = {name: _entry.decode(raw) for name, raw in header.items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TensorFileError(f"its header is none of safetensors: {error}") from None
        return {name: _place(name, entry, first, size) for name, entry in entries.items()}

    def read(self, name: str) -> Tensor:
        """A tensor whose format is one of DTYPES."""
        stored = self.tensors[name]
        tensor = torch.empty(stored.shape, dtype=DTYPES[stored.format])
        buffer = tensor.view(-1).view(torch.uint8).numpy().data
        self._file.seek(stored.start)
        if self._file.readinto(buffer) != stored.nbytes:
            raise TensorFileError(f"it ended within tensor {name!r}: it was shortened while it was read; try again")
        return tensor


def _place(name: str, entry: _Entry, first: int, size: int) -> StoredTensor:
    start, end = entry.data_offsets
    if not first <= first + start <= first + end <= size:
        raise TensorFileError(f"tensor {name[:200]!r} lies beyond its end, at {size} bytes: it is cut off")
    dtype = DTYPES.get(entry.dtype)
    if dtype is not None and end - start != math.prod(entry.shape) * dtype.itemsize:
        raise TensorFileError(f"tensor {name[:200]!r} has {end - start} bytes, which are not those of its shape")
    return StoredTensor(list(entry.shape), entry.dtype, first + start, end - start)
