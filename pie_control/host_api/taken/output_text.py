"""output-text.wit: distributions in the form that costs Python least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...calls.arrays import packed
from ...calls.output_text.get_next_dist import Dist
from ...calls.output_text.get_next_dists import Dists
from ..guest import Guest
from ..suspending import suspending, when_done


@suspending
def await_packed_dists(guest: Guest, future: int) -> Any:
    """The same for several embeds."""

    def take() -> tuple[str, str, Sequence[float]]:
        tokens, probabilities, rest = guest.futures.take(future, Dists)
        return packed(tokens, "<u4"), packed(probabilities, "<f4"), rest.tolist()

    return when_done(guest, future, take)


@suspending
def await_packed_dist(guest: Guest, future: int) -> Any:
    """Suspends until the distribution is there."""
    return when_done(guest, future, lambda: guest.futures.take(future, Dist).packed())
