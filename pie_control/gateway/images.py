"""The images in the body of a request: a program cannot make blobs, so the inferlet gets them beside the body. Pure."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from hashlib import sha256

WRITTEN = re.compile(rb'(?<!\\)"(?:data:image\\?/[\w.+-]+;base64,)?([A-Za-z0-9+/\\]{64,}={0,2})"')
"""A JSON text that may be base64, alone or as the data URL of an image. No group repeats: `re` would keep 130 bytes for
each time."""


def images_of(body: bytes) -> dict[str, bytes]:
    """PNG and JPEG images that stand in base64 in a JSON body, by names: `image-` and the first 32 digits of the
    SHA-256 of the base64 text."""
    if b"iVBORw0KGgo" not in body and b"/9j" not in body:
        return {}
    found: dict[str, bytes] = {}
    for match in WRITTEN.finditer(body):
        text = match[1].replace(b"\\/", b"/")
        if not text.startswith((b"iVBORw0KGgo", b"/9j/")):
            continue
        try:
            data = b64decode(text, validate=True)
        except binascii.Error:
            continue
        found[f"image-{sha256(text).hexdigest()[:32]}"] = data
    return found
