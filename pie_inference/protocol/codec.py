"""Messages to frames and back: a msgpack header, and one frame that holds the bytes of all arrays.

An array stands in the header as (dtype, shape, offset into the second frame). Offsets are multiples of 8, so decoded
arrays are aligned, read-only views without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from .batch import Array, Message
from .conversation import FromWorker, ToWorker

ALIGNMENT = 8
DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("?", "u1", "<i4", "<i8", "<f4", "<f8")}
"""What may travel. Looking a dtype up is also much faster than parsing it."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
"""What follows an array, by the bytes that it has beyond the last multiple."""

Buffer = bytes | bytearray | memoryview


class ProtocolError(ValueError):
    """A peer sent something that is not a message of this protocol."""


class _Encoder:
    """Collects the bytes of the arrays while msgspec writes the header. A message has many small ones."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.offset = 0

    def hook(self, value: Any) -> tuple[str, tuple[int, ...], int]:
        name = NAMES.get(value.dtype) if type(value) is np.ndarray else None
        if name is None:
            raise NotImplementedError(f"{getattr(value, 'dtype', type(value).__name__)} cannot be sent")
        start, shape = self.offset, value.shape
        if size := value.nbytes:
            self.parts.append(value.tobytes())
            if rest := size % ALIGNMENT:
                self.parts.append(PADDING[rest])
                size += ALIGNMENT - rest
            self.offset = start + size
        return name, shape, start


def encode(message: Message) -> list[bytes]:
    """Frames of a message: [header, arrays]."""
    encoder = _Encoder()
    header = msgspec.msgpack.encode(message, enc_hook=encoder.hook)
    return [header, b"".join(encoder.parts)]


def _array(arrays: Buffer, dtype: str, shape: Sequence[int], offset: int) -> Array:
    """A view of the array at `offset`; raises TypeError, KeyError or ValueError where the description is wrong."""
    if len(shape) == 1 and shape[0] > 0:
        return np.frombuffer(arrays, DTYPES[dtype], shape[0], offset)
    if min(shape, default=0) < 0:
        raise ValueError("an array has a negative size")
    if 0 in shape:  # numpy refuses to view nothing
        return np.empty(shape, DTYPES[dtype])
    return np.frombuffer(arrays, DTYPES[dtype], math.prod(shape), offset).reshape(shape)


def _decode(frames: Sequence[Buffer], kind: Any) -> Any:
    if len(frames) != 2:
        raise ProtocolError(f"a message has 2 frames, got {len(frames)}")
    header, arrays = frames

    def hook(wanted: Any, value: Any) -> Any:
        return value if wanted is object else _array(arrays, *value)

    try:
        return msgspec.msgpack.decode(header, type=kind, dec_hook=hook)
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ProtocolError(f"malformed message: {error}") from error


def decode_to_worker(frames: Sequence[Buffer]) -> ToWorker:
    """The message that the control layer sent; raises ProtocolError."""
    message: ToWorker = _decode(frames, ToWorker)
    return message


def decode_from_worker(frames: Sequence[Buffer]) -> FromWorker:
    """The message that a worker sent; raises ProtocolError."""
    message: FromWorker = _decode(frames, FromWorker)
    return message
