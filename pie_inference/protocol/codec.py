"""Messages to frames and back: a msgpack header, and one frame that holds the bytes of all arrays.

Arrays stand in the second frame in the order in which the header names them, each at the next multiple of 8, so decoded
arrays are aligned, read-only views without a copy. In the header an array of one dimension is the number
`length * 8 + code`, where `code` says its dtype; another one is the list of its code and its lengths.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from .batch import Message
from .conversation import FromWorker, ToWorker

ALIGNMENT = 8
DTYPES = tuple(np.dtype(name) for name in ("?", "u1", "<i4", "<i8", "<f4", "<f8"))
"""What may travel; the place of one is its code."""
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
CODE_BITS = 3
EMPTY = tuple(np.frombuffer(b"", dtype) for dtype in DTYPES)
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
"""What follows an array, by the bytes that it has beyond the last multiple."""

Buffer = bytes | bytearray | memoryview


class ProtocolError(ValueError):
    """A peer sent something that is not a message of this protocol."""


class _Encoder:
    """Collects the bytes of the arrays while msgspec writes the header. A message has many small ones."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._hook).encode

    def _hook(self, value: Any) -> int | tuple[int, ...]:
        code = CODES.get(value.dtype) if type(value) is np.ndarray else None
        if code is None:
            raise NotImplementedError(f"{getattr(value, 'dtype', type(value).__name__)} cannot be sent")
        data = value.tobytes()
        if data:
            self._parts.append(data)
            if rest := len(data) % ALIGNMENT:
                self._parts.append(PADDING[rest])
        if value.ndim == 1:
            return len(value) << CODE_BITS | code
        return code, *value.shape

    def encode(self, message: Message) -> list[bytes]:
        try:
            return [self._encode(message), b"".join(self._parts)]
        finally:
            self._parts.clear()


class _Decoder:
    """Makes the arrays while msgspec reads the header."""

    def __init__(self, kind: Any) -> None:
        self._arrays: Buffer = b""
        self._offset = 0
        self._decode = msgspec.msgpack.Decoder(kind, dec_hook=self._hook).decode  # making one costs as much as a wave

    def _hook(self, wanted: Any, value: Any) -> Any:
        if wanted is object:
            return value
        if type(value) is int:
            count, shape, code = value >> CODE_BITS, None, value & (1 << CODE_BITS) - 1
        else:
            code, *shape = value
            if min(shape) < 0:
                raise ValueError("an array has a negative size")
            count = math.prod(shape)
        if count > 0:
            dtype, offset = DTYPES[code], self._offset
            array = np.frombuffer(self._arrays, dtype, count, offset)
            self._offset = offset + -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        elif count < 0:
            raise ValueError("an array has a negative size")
        else:  # numpy refuses to view nothing
            array = EMPTY[code]
        return array if shape is None else array.reshape(shape)

    def decode(self, frames: Sequence[Buffer]) -> Any:
        """Raises ProtocolError."""
        if len(frames) != 2:
            raise ProtocolError(f"a message has 2 frames, got {len(frames)}")
        header, self._arrays = frames
        self._offset = 0
        try:
            return self._decode(header)
        except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"malformed message: {error}") from error
        finally:
            self._arrays = b""


class _Coders(threading.local):
    """Those of a thread: a coder works on one message."""

    def __init__(self) -> None:
        self.encode = _Encoder().encode
        self.to_worker = _Decoder(ToWorker).decode
        self.from_worker = _Decoder(FromWorker).decode


_coders = _Coders()


def encode(message: Message) -> list[bytes]:
    """Frames of a message: [header, arrays]."""
    return _coders.encode(message)


def decode_to_worker(frames: Sequence[Buffer]) -> ToWorker:
    """The message that the control layer sent; raises ProtocolError."""
    message: ToWorker = _coders.to_worker(frames)
    return message


def decode_from_worker(frames: Sequence[Buffer]) -> FromWorker:
    """The message that a worker sent; raises ProtocolError."""
    message: FromWorker = _coders.from_worker(frames)
    return message
