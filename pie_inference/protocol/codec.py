"""Messages to frames and back: a msgpack header, and one frame that holds the bytes of all arrays.

An array stands in the header as (dtype, shape, offset into the second frame). Offsets are multiples of 8, so decoded
arrays are aligned, read-only views without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_origin

import msgspec
import numpy as np

from .messages import FromWorker, Message, ToWorker

ALIGNMENT = 8
Buffer = bytes | bytearray | memoryview


class ProtocolError(ValueError):
    """A peer sent something that is not a message of this protocol."""


class _Encoder:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.offset = 0

    def hook(self, value: Any) -> tuple[str, tuple[int, ...], int]:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{type(value).__name__} cannot be sent")
        data = value.tobytes()
        start = self.offset
        self.parts.append(data)
        padding = -len(data) % ALIGNMENT
        if padding:
            self.parts.append(b"\0" * padding)
        self.offset += len(data) + padding
        return value.dtype.str, value.shape, start


def encode(message: Message) -> list[bytes]:
    """Frames of a message: [header, arrays]."""
    encoder = _Encoder()
    header = msgspec.msgpack.encode(message, enc_hook=encoder.hook)
    return [header, b"".join(encoder.parts)]


def _decode(frames: Sequence[Buffer], kind: Any) -> Any:
    if len(frames) != 2:
        raise ProtocolError(f"a message has 2 frames, got {len(frames)}")
    header, arrays = frames

    def hook(wanted: type, value: Any) -> np.ndarray:
        if (get_origin(wanted) or wanted) is not np.ndarray:
            raise NotImplementedError(f"no decoder for {wanted}")
        dtype, shape, offset = value
        if np.dtype(dtype).hasobject:
            raise ValueError("object arrays are not allowed")
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(arrays, dtype=dtype, count=count, offset=offset).reshape(shape)

    try:
        return msgspec.msgpack.decode(header, type=kind, dec_hook=hook)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise ProtocolError(f"malformed message: {error}") from error


def decode_to_worker(frames: Sequence[Buffer]) -> ToWorker:
    """The message that the control layer sent; raises ProtocolError."""
    message: ToWorker = _decode(frames, ToWorker)
    return message


def decode_from_worker(frames: Sequence[Buffer]) -> FromWorker:
    """The message that a worker sent; raises ProtocolError."""
    message: FromWorker = _decode(frames, FromWorker)
    return message
