"""output-text.wit: distributions in the form that costs Python least."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any

from ...calls.output_text.get_next_dist import Dist
from ..guest import Guest
from ..suspending import suspending, when_done


@suspending
def await_packed_dist(guest: Guest, future: int) -> Any:
    """Suspends until the distribution is there."""

    def take() -> tuple[str, str, float]:
        tokens, probabilities, rest = guest.futures.take(future, Dist)
        return packed(tokens.astype("<u4", copy=False)), packed(probabilities.astype("<f4", copy=False)), rest

    return when_done(guest, future, take)


def packed(numbers: Any) -> str:
    """The bytes of an array in base64."""
    return b2a_base64(numbers, newline=False).decode()
