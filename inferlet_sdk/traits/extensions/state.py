"""State: what a model keeps of a text beside keys and values, if it has recurrent layers.

A state is what the model knows behind a token. A forward needs the one at the end of its context, and takes it along,
unless it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import HasQueue, page_ranges, queue_number, whole

__all__ = [
    "drop_state",
    "keep_state",
]


def keep_state(queue: int | HasQueue, context: Pages | Iterable[int]) -> None:
    """Keeps the state at the end of a text, whose tokens are in the pages `context`: forwards may go on from there
    again and again. Commands that run the text may still wait.

    It stays until a token that it has read is cut off or written over, or its page is given back, and counts as
    `state_pages` pages (`get_model_info`). Raises InvalidState if there is none: it has moved on.
    """
    call(bindings.state.keep_state, queue_number(queue), page_ranges(context, "context"))


def drop_state(queue: int | HasQueue, context: Pages | Iterable[int], length: int) -> None:
    """Gives the state behind the first `length` tokens of a text back, kept or not: nothing goes on from there any
    more. Raises InvalidState if there is none."""
    number, ranges = queue_number(queue), page_ranges(context, "context")
    call(bindings.state.drop_state, number, ranges, whole(length, "length"))
