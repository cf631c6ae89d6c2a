"""Frames over a stream of bytes between two processes of one machine.

A frame is its length and its bytes. `pack` makes one of the two frames of a message: the length of the header, the
header, and the arrays. It is as long as a multiple of ALIGNMENT, so that the arrays of every message are aligned where
they are read.
"""

from __future__ import annotations

import struct

from .codec import ALIGNMENT, ProtocolError

LENGTH = struct.Struct("<I")
LENGTHS = struct.Struct("<II")
DESCRIPTOR = "fd:"
"""With the number of a socket that a worker inherits: the address of a control process on the same machine."""
READ_BYTES = 1 << 18
"""What is read at a time."""
MOST_BYTES = (1 << 32) - 1
"""Most bytes that a frame can announce: all that a turn says to a thousand inferlets, or to a worker, comes at once."""
MOST_UNTRUSTED = 1 << 28
"""Most bytes of a frame of a peer that may lie."""


class FrameTooLong(ProtocolError):
    """A peer announces a frame that is none."""


def pack(frames: list[bytes]) -> list[bytes]:
    """Parts of the bytes that stand for a message, given as `encode` makes it. Raises FrameTooLong."""
    header, arrays = frames
    padding = bytes(-len(header) % ALIGNMENT)
    size = LENGTH.size + len(header) + len(padding) + len(arrays)
    if size > MOST_BYTES:
        raise FrameTooLong(f"a message of {size} bytes, more than {MOST_BYTES}")
    return [LENGTHS.pack(size, len(header)), header, padding, arrays]


def unpack(frame: memoryview) -> list[memoryview]:
    """The two frames of a message, as `decode_to_worker` takes them. Raises ProtocolError."""
    if len(frame) < LENGTH.size:
        raise ProtocolError(f"a message has a length and a header, got {len(frame)} bytes")
    (size,) = LENGTH.unpack_from(frame)
    arrays = LENGTH.size + size + -size % ALIGNMENT
    if arrays > len(frame):
        raise ProtocolError(f"a header of {size} bytes in a frame of {len(frame)}")
    return [frame[LENGTH.size : LENGTH.size + size], frame[arrays:]]


class FrameReader:
    """Cuts what comes into frames. It copies nothing where whole frames come."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._data: bytes | bytearray = b""  # a bytearray is its own, and nothing of it was handed out
        self._begin = 0  # of what was not handed out

    def feed(self, data: bytes) -> None:
        """This has come."""
        if self._begin == len(self._data):
            self._data, self._begin = data, 0
            return
        if self._begin or not isinstance(self._data, bytearray):
            self._data, self._begin = bytearray(memoryview(self._data)[self._begin :]), 0
        self._data += data

    def next(self) -> memoryview | None:
        """The next frame; None if it is not complete. Raises FrameTooLong."""
        begin = self._begin + LENGTH.size
        if begin > len(self._data):
            return None
        (size,) = LENGTH.unpack_from(self._data, self._begin)
        if size > self._most_bytes:
            raise FrameTooLong(f"a frame of {size} bytes, more than {self._most_bytes}")
        end = begin + size
        if end > len(self._data):
            return None
        self._begin = end
        return memoryview(self._data)[begin:end]
