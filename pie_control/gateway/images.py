"""The images in the body of a request: a program cannot make blobs, so the inferlet gets them beside the body. Pure."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from hashlib import sha256

BEGINNING = re.compile(rb'(?<!\\)"(?:data:image\\?/[\w.+-]{1,100};base64,)?(?=iVBORw0KGgo|\\?/9j\\?/)')
"""What comes before the base64 of a PNG or JPEG image, alone or in a data URL: a JSON text begins."""
LONGEST_BEGINNING = 160
"""Bytes that it takes to see one."""
SHORTEST = 64
"""Characters of base64."""
PIECE = 1 << 18
"""Bytes that are looked at together, a multiple of four: other threads wait meanwhile, and may go on between two."""


def images_of(body: bytes) -> dict[str, bytes]:
    """PNG and JPEG images that stand in base64 in a JSON body, by names: `image-` and the first 32 digits of the
    SHA-256 of the base64 text."""
    found: dict[str, bytes] = {}
    for begin in _beginnings(body):
        end = body.find(b'"', begin)
        text = body[begin:end].replace(b"\\/", b"/")
        if end < 0 or len(text) < SHORTEST or not text.startswith((b"iVBORw0KGgo", b"/9j/")):
            continue
        try:
            data = _decoded(text)
        except binascii.Error:
            continue
        found[f"image-{sha256(text).hexdigest()[:32]}"] = data
    return found


def _beginnings(body: bytes) -> Iterator[int]:
    """Where the base64 of an image may begin."""
    for begin in range(0, len(body), PIECE):
        end = begin + PIECE
        piece = body[begin : end + LONGEST_BEGINNING]
        if b"iVBORw0KGgo" not in piece and b"/9j" not in piece:
            continue
        for match in BEGINNING.finditer(body, begin, end + LONGEST_BEGINNING):
            if match.start() < end:
                yield match.end()


def _decoded(text: bytes) -> bytes:
    """Raises binascii.Error."""
    pieces = [text[begin : begin + PIECE] for begin in range(0, len(text), PIECE)]
    return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
