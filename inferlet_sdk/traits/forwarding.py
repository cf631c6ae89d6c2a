"""The call that runs the Transformer, under all functions that do (forward.wit)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    """The call of the host under all forwards: `forward`, `forward_with_scores`, `forward_with_dist` and
    `forward_with_sampling` give what it reads. Gives the number of the future, 0 if nothing is read.

    `tokens` at `positions` fill the inputs first. At most one of `scores`, `dist` (k and temperature) and `sampler`;
    the last two read one output embed.
    """
    lists = forward_lists(queue, context, input_embeds, output_pages, output_embeds)
    return run(
        *lists,
        references(tokens),
        numbers(positions, "positions", "a position"),
        mask=mask,
        adapter=adapter,
        scores=flag(scores, "scores"),
        dist=_checked_dist(dist),
        sampler=0 if sampler is None else sampler_number(sampler),
    )


def _checked_dist(dist: object) -> tuple[int, float]:
    if dist is None:
        return NO_DIST
    if not isinstance(dist, tuple | list) or len(dist) != 2:
        raise wrong("dist", "k and temperature, as in (256, 1.0)", dist)
    return asked_dist(dist[0], dist[1], ("dist[0]", "dist[1]"))


def asked_dist(k: int, temperature: float, names: tuple[str, str] = ("k", "temperature")) -> tuple[int, float]:
    """Checked arguments of a distribution that is read."""
    wanted = whole(k, names[0]), number(temperature, names[1])
    if wanted == NO_DIST:
        raise ValueError(f"{names[1]}: it must be above 0")
    return wanted


def named_adapter(adapter: str) -> str:
    """The name of an adapter, and not of none."""
    if text(adapter, "adapter") == "":
        raise ValueError("adapter: give the name of an adapter; `forward` runs without one")
    return adapter


NO_DIST = 0, 0.0


def run(
    queue: int,
    context: list[int],
    inputs: list[int],
    pages: list[int],
    outputs: list[int],
    tokens: Sequence[int] = (),
    positions: Sequence[int] = (),
    *,
    mask: Mask | None = None,
    adapter: str = "",
    scores: bool = False,
    dist: tuple[int, float] = NO_DIST,
    sampler: int = 0,
) -> int:
    """Makes the call of `forward_with`, with lists that are checked."""
    rows = [] if mask is None else mask_rows(mask, "mask")
    lists = queue, context, inputs, pages, outputs, list(tokens), list(positions), rows
    return int(call(bindings.forward.forward, *lists, text(adapter, "adapter"), sampler, *dist, scores))


def run_step(
    step: tuple[int, list[int], list[int], list[int], list[int], list[int], int],
    mask: Mask | None,
    adapter: str,
    *,
    dist: tuple[int, float] = NO_DIST,
    sampler: int = 0,
) -> int:
    """Makes the call of a step, with what `step_lists` gives."""
    queue, tokens, positions, inputs, context, output, embed = step
    lists = queue, context, inputs, output, [embed, 1], tokens, positions
    return run(*lists, mask=mask, adapter=adapter, dist=dist, sampler=sampler)
