"""What can be done with a context of which tokens are, or shall be, dropped.

`dropped` are the ranges of tokens of a `PageTable`.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlet_sdk.errors import InvalidArgument, InvalidState


def check_droppable(tokens: int, start: int, stop: int) -> None:
    """Raises InvalidArgument unless a context with `tokens` tokens may drop those from `start` to `stop`."""
    if not 0 <= start <= stop <= max(tokens - 1, 0):
        raise InvalidArgument(
            f"tokens {start} to {stop} cannot be dropped: of {tokens} tokens all but the last one can"
        )


def check_end(dropped: Sequence[tuple[int, int]], tokens: int) -> None:
    """Raises InvalidState if a context of the first `tokens` tokens would end among those that were dropped."""
    for start, stop in dropped:
        if start < tokens < stop:
            raise InvalidState(f"tokens {start} to {stop} were dropped: truncate to at most {start}, or {stop}")


def before_dropped(dropped: Sequence[tuple[int, int]], tokens: int) -> int:
    """How many of the first `tokens` tokens a context may keep, which cannot end among those that were dropped."""
    return next((start for start, stop in dropped if start < tokens < stop), tokens)


def ends_dropped(dropped: Sequence[tuple[int, int]], tokens: int) -> bool:
    """Whether the last one of `tokens` tokens was dropped."""
    return bool(dropped) and dropped[-1][1] == tokens


def check_output(dropped: Sequence[tuple[int, int]], tokens: int) -> None:
    """Raises InvalidState if the last one of `tokens` tokens was dropped. It would run again for its output, and be
    seen again."""
    if ends_dropped(dropped, tokens):
        start = dropped[-1][0]
        raise InvalidState(
            f"the last token was dropped, and gives no output: fill something behind it, or truncate to at most {start}"
        )
