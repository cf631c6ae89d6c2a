"""Texts for people."""

from __future__ import annotations

SHOWN = 40


def shown(text: str) -> str:
    """The end of a text, as `repr` writes it."""
    return repr(text) if len(text) <= SHOWN else "..." + repr(text[-SHOWN:])
