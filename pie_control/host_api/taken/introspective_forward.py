"""introspective-forward.wit: scores in the form that costs Python least."""

from __future__ import annotations

from typing import Any

from ...calls.arrays import packed
from ...calls.introspective_forward.forward_with_scores import Scores
from ..guest import Guest
from ..suspending import suspending, when_done


@suspending
def await_packed_scores(guest: Guest, future: int) -> Any:
    """Suspends until the scores are there."""
    return when_done(guest, future, lambda: packed(guest.futures.take(future, Scores).scores, "<f4"))
