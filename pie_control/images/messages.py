"""What a host and the process that decodes its images say to each other: frames of msgpack behind their lengths."""

from __future__ import annotations

import msgspec

from pie_inference.protocol import Vision

LENGTH_BYTES = 8


class PrepareImage(msgspec.Struct, frozen=True, tag=True):
    """Prepare an image for a model; answered by `Begun` and the tiles, a frame of bytes each, or `ImageRefused`."""

    vision: Vision
    data: bytes


class PreparedImage(msgspec.Struct, frozen=True):
    """The tiles of an image, and its sides in pixels."""

    width: int
    height: int
    tiles: list[bytes]  # [tile_size, tile_size, 3] each, row by row, the whole image last


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The answer but for the tiles, which follow. `seconds`: of processor time."""

    width: int
    height: int
    tiles: int
    seconds: float


class ImageRefused(msgspec.Struct, frozen=True, tag=True):
    """The image cannot be taken: why, and what to do."""

    reason: str
    seconds: float


Answer = Begun | ImageRefused

_encode = msgspec.msgpack.Encoder().encode


def framed(message: PrepareImage | Answer | bytes) -> bytes:
    """A frame: the length, and the message, or bytes as they are."""
    body = message if isinstance(message, bytes) else _encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


decode_request = msgspec.msgpack.Decoder(PrepareImage).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
