"""State: what a model keeps of a text beside keys and values, if it has recurrent layers.

A state is what the model knows behind a token. A forward needs the one at the end of its context, and takes it along,
unless it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import HasQueue, page_ranges, queue_number, text, whole
from inferlet_sdk.traits.forwarding import forward_lists

__all__ = [
    "drop_state",
    "find_state",
    "forward_draft",
    "keep_state",
]


def keep_state(queue: int | HasQueue, context: Pages | Iterable[int]) -> None:
    """Keeps the state at the end of a text, whose tokens are in the pages `context`: forwards may go on from there
    again and again. Commands that run the text may still wait.

    It stays until a token that it has read is cut off or written over, or its page is given back, and counts as
    `state_pages` pages (`get_model_info`). Raises InvalidState if there is none: it has moved on.
    """
    call(bindings.state.keep_state, queue_number(queue), page_ranges(context, "context"))


def forward_draft(
    queue: int | HasQueue,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int],
    output_embeds: Embeds | Iterable[int] = (),
    *,
    adapter: str = "",
) -> None:
    """Does `forward` for at most 64 tokens of which some may not stay. It leaves a state behind each of them, as far as
    there is memory. The state that it begins with stays.

    Which tokens have one is known with the answer of what reads the outputs: ask `find_state` then. When a forward goes
    on from one of all these, the others are given back, but for those that are kept.
    """
    lists = forward_lists(queue, context, input_embeds, output_pages, output_embeds)
    call(bindings.state.forward_draft, *lists, text(adapter, "adapter"))


def find_state(queue: int | HasQueue, context: Pages | Iterable[int], length: int) -> int:
    """The last place of a text, up to behind its first `length` tokens, from which a forward may go on: how many tokens
    are before it, 0 if there is none. `context`: the pages with all of its tokens."""
    number, ranges = queue_number(queue), page_ranges(context, "context")
    return int(call(bindings.state.find_state, number, ranges, whole(length, "length")))


def drop_state(queue: int | HasQueue, context: Pages | Iterable[int], length: int) -> None:
    """Gives the state behind the first `length` tokens of a text back, kept or not: nothing goes on from there any
    more. Raises InvalidState if there is none."""
    number, ranges = queue_number(queue), page_ranges(context, "context")
    call(bindings.state.drop_state, number, ranges, whole(length, "length"))
