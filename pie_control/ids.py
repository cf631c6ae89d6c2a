"""Numbers by which parts of the control layer name things to each other, and identifiers for clients."""

from __future__ import annotations

import os
import time
import uuid

Owner = int
"""Number of an inferlet, unique while the server runs."""

LAST_FUTURE = 0x7FFF_FFFF
"""Futures stay below the bit that marks a token reference."""
REFERENCE_BIT = 0x8000_0000
"""A token with this bit names the token that a future will give (input-text.wit)."""


def uuid7() -> uuid.UUID:
    """An identifier that sorts by the millisecond in which it was made (RFC 9562, section 5.7)."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10))
    return uuid.UUID(int=value & ~(0xF000 << 64 | 0xC000 << 48) | 0x7000 << 64 | 0x8000 << 48)
