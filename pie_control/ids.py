"""Numbers by which parts of the control layer name things to each other."""

from __future__ import annotations

Owner = int
"""Number of an inferlet, unique while the server runs."""

LAST_FUTURE = 0x7FFF_FFFF
"""Futures stay below the bit that marks a token reference."""
REFERENCE_BIT = 0x8000_0000
"""A token with this bit names the token that a future will give (input-text.wit)."""
