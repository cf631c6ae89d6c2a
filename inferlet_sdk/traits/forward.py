"""Forward: runs the Transformer (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import (
    HasQueue,
    embed_ranges,
    numbers,
    page_ranges,
    place_ranges,
    queue_number,
    whole,
    wrong,
)
from inferlet_sdk.traits.forwarding import Mask, forward_lists, run

__all__ = [
    "forward",
    "forward_with_mask",
    "mask_kvpage",
    "set_positions",
    "shift_kvpage",
]


def forward(
    queue: int | HasQueue,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int] = (),
    output_embeds: Embeds | Iterable[int] = (),
    *,
    mask: Mask | None = None,
    adapter: str = "",
) -> None:
    """Runs the Transformer over the input embeds.

    Each query attends to the tokens of `context` at smaller positions, and causally to the other inputs. Keys and
    values go to the next free slots of `output_pages`, in order; without output pages they are dropped. The outputs of
    the last `len(output_embeds)` inputs go to `output_embeds`. An output embed that is fed back as an input needs
    a position of its own, see `set_positions`. `mask` is that of `forward_with_mask`, `adapter` the name of that of
    `forward_with_adapter`. Raises InvalidState if there is no free slot, or if an input embed was never filled.
    """
    run(*forward_lists(queue, context, input_embeds, output_pages, output_embeds), mask=mask, adapter=adapter)


def forward_with_mask(
    queue: int | HasQueue,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int],
    output_embeds: Embeds | Iterable[int],
    mask: Mask,
) -> None:
    """Does `forward` with a mask in place of the rule by positions: for each input the columns that it sees, such as
    `range(0, 8)`. Columns are the tokens in `context`, in the order of its filled slots, then the inputs.

    A hidden token has a column and stays hidden. Inputs may see later ones, if all fit into one batch.
    """
    if mask is None:
        raise wrong("mask", "for each input the columns that it sees", mask)
    run(*forward_lists(queue, context, input_embeds, output_pages, output_embeds), mask=mask)


def mask_kvpage(queue: int | HasQueue, pages: Pages | Iterable[int], hidden: Iterable[int] = ()) -> None:
    """Hides tokens from the forwards that come after, and shows all other tokens of these pages. `hidden`: the places
    of their slots along the pages, as in `range(4, 100)`.

    A hidden token keeps its slot, which is not free, and its position. Raises InvalidState if a slot holds no token.
    """
    call(
        bindings.forward.mask_kvpage,
        queue_number(queue),
        page_ranges(pages, "pages"),
        place_ranges(hidden, "hidden"),
    )


def shift_kvpage(queue: int | HasQueue, pages: Pages | Iterable[int], by: int) -> None:
    """Moves the tokens of pages by `by` positions, forwards or backwards, without computing them again: their keys are
    rotated, for the forwards that come after.

    Those that are hidden stay where they are. What tokens have seen when they were computed stays in them. Each move
    rounds the keys: in bfloat16 they are off by 0.2 % of their length after one move, by 5 % after 100. Raises
    InvalidArgument for a position that the model does not have, InvalidState for pages without a token to move, for
    pages that were exported or imported (copy their tokens to pages of your own), and while a decode run uses them;
    Unsupported if the rotation of the model depends on the length of the text (`moves_tokens` of `get_model_info`).
    """
    by = whole(by, "by", -(2**31), 2**31 - 1)
    call(bindings.forward.shift_kvpage, queue_number(queue), page_ranges(pages, "pages"), by)


def set_positions(queue: int | HasQueue, positions: Iterable[int], embeds: Embeds | Iterable[int]) -> None:
    """Gives filled embeds new positions, one for each, for the forwards that come after.

    An output embed that is fed back as an input needs one: otherwise it keeps the position of the token that made it,
    and cannot see that token. Raises InvalidState if an embed was never filled.
    """
    call(
        bindings.forward.set_positions,
        queue_number(queue),
        numbers(positions, "positions", "a position"),
        embed_ranges(embeds, "embeds"),
    )
