"""The sections of WebAssembly's binary format, of which modules and components consist."""

from __future__ import annotations

from collections.abc import Iterator

Data = bytes | memoryview


def sections(data: Data, place: int = 8, end: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of the sections of a module or component, which is all, or ends at `end`; `place`: behind
    its header."""
    end = len(data) if end is None else end
    while place < end:
        size, start = number(data, place + 1)
        yield data[place], start, start + size
        place = start + size


def number(data: Data, place: int) -> tuple[int, int]:
    """A number in LEB128 without a sign, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def sized(content: bytes) -> bytes:
    """The content behind its size in LEB128."""
    size, digits = len(content), bytearray()
    while size > 127:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([*digits, size]) + content
