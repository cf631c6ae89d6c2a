"""Lists of numbers as texts, which cost a Python guest next to nothing until it reads them."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any


def packed(numbers: Any) -> str:
    """Base64 of the bytes of an array."""
    return b2a_base64(numbers, newline=False).decode()
