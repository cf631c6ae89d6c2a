"""What the calls that run the Transformer have in common, and the one that has all of it (fused.wit)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.futures import TokenFuture
from inferlet_sdk.traits.arguments import (
    HasQueue,
    embed_ranges,
    flag,
    mask_rows,
    number,
    numbers,
    one_embed,
    page_ranges,
    queue_number,
    references,
    sampler_number,
    text,
    whole,
    wrong,
)

Mask = Iterable[Iterable[int]]
"""For each input the columns that it sees, such as `range(0, 8)`: the tokens of the context, in the order of its filled
slots, then the inputs."""


def forward_lists(
    queue: int | HasQueue,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int],
    output_embeds: Embeds | Iterable[int],
) -> tuple[int, list[int], list[int], list[int], list[int]]:
    """Checked arguments of a forward, as the host takes them."""
    return (
        queue_number(queue),
        page_ranges(context, "context"),
        embed_ranges(input_embeds, "input_embeds"),
        page_ranges(output_pages, "output_pages"),
        embed_ranges(output_embeds, "output_embeds"),
    )


def step_lists(
    queue: int | HasQueue,
    tokens: Sequence[int | TokenFuture],
    positions: Sequence[int],
    inputs: Embeds | Iterable[int],
    context: Pages | Iterable[int],
    output: Pages | Iterable[int],
    output_embed: int | Embeds,
) -> tuple[int, list[int], list[int], list[int], list[int], list[int], int]:
    """Checked arguments of a forward that fills its inputs, and whose output is read, in the same call."""
    return (
        queue_number(queue),
        references(tokens),
        numbers(positions, "positions", "a position"),
        embed_ranges(inputs, "inputs"),
        page_ranges(context, "context"),
        page_ranges(output, "output"),
        one_embed(output_embed, "output_embed"),
    )


@lru_cache(maxsize=64)
def options_text(
    adapter: str, scores: bool = False, dist: tuple[int, float] | None = None, sampler: int | None = None
) -> str:
    """The options of `forward_with`; `dist`: k and temperature."""
    options: dict[str, object] = {"adapter": adapter, "scores": scores, "sampler": sampler}
    if dist is not None:
        options["dist"] = {"k": dist[0], "temperature": dist[1]}
    return json.dumps(options)


def forward_with(
    queue: int | HasQueue,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int] = (),
    output_embeds: Embeds | Iterable[int] = (),
    *,
    tokens: Sequence[int | TokenFuture] = (),
    positions: Sequence[int] = (),
    mask: Mask | None = None,
    adapter: str = "",
    scores: bool = False,
    dist: tuple[int, float] | None = None,
    sampler: int | None = None,
) -> int:
    """The call under `forward`, `forward_with_scores`, `forward_with_dist` and `forward_with_sampling`, which give what
    is read, where they have a mask or an adapter. Gives the number of the future, 0 if nothing is read.

    At most one of `scores`, `dist` (k and temperature) and `sampler`; the last two need `tokens` at `positions`, which
    fill the inputs, and one output embed.
    """
    lists = forward_lists(queue, context, input_embeds, output_pages, output_embeds)
    filling = references(tokens), numbers(positions, "positions", "a position")
    chosen = None if sampler is None else sampler_number(sampler)
    options = options_text(text(adapter, "adapter"), flag(scores, "scores"), _checked_dist(dist), chosen)
    return _call(lists[0], *filling, lists[2], lists[1], *lists[3:], mask, options)


def _checked_dist(dist: object) -> tuple[int, float] | None:
    if dist is None:
        return None
    if not isinstance(dist, tuple | list) or len(dist) != 2:
        raise wrong("dist", "k and temperature, as in (256, 1.0)", dist)
    return whole(dist[0], "dist[0]"), number(dist[1], "dist[1]")


def step_with(
    step: tuple[int, list[int], list[int], list[int], list[int], list[int], int],
    mask: Mask | None,
    adapter: str,
    *,
    dist: tuple[int, float] | None = None,
    sampler: int | None = None,
) -> int:
    """The same, with what `step_lists` gives."""
    *lists, output = step
    return _call(*lists, [output, 1], mask, options_text(text(adapter, "adapter"), False, dist, sampler))


def _call(*arguments: Any) -> int:
    *lists, mask, options = arguments
    rows = [] if mask is None else mask_rows(mask, "mask")
    return int(call(bindings.fused.forward_with, *lists, rows, options))
