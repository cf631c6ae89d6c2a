"""output-text.wit: distributions in the form that costs Python least."""

from __future__ import annotations

from typing import Any

from ..calls.output_text.get_next_dist import Dist
from .guest import Guest
from .packed import packed
from .suspending import suspending, when_done


@suspending
def await_packed_dist(guest: Guest, future: int) -> Any:
    """Suspends until the distribution is there."""

    def take() -> tuple[str, str, float]:
        tokens, probabilities, rest = guest.futures.take(future, Dist)
        return packed(tokens.astype("<u4", copy=False)), packed(probabilities.astype("<f4", copy=False)), rest

    return when_done(guest, future, take)
