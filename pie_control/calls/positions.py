"""Positions of tokens, as calls are given them."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument


def check_positions(positions: Sequence[int], limit: int) -> None:
    """Raises InvalidArgument unless all are below the model's limit, and none is negative."""
    if max(positions) >= limit or min(positions) < 0:
        bad = next(position for position in positions if not 0 <= position < limit)
        raise InvalidArgument(f"position {bad} is outside of the model's context of {limit} tokens: give less text")
