"""Decode runs that keep to a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import HasQueue, whole
from inferlet_sdk.traits.runs import DecodeRun, run_arguments

__all__ = ["decode_with_matcher"]


def decode_with_matcher(
    queue: int | HasQueue,
    embed: int | Embeds,
    sampler: int,
    matcher: int,
    input: int | Embeds,
    position: int,
    context: Pages | Iterable[int],
    pages: Pages | Iterable[int],
    steps: int,
    stop: Sequence[int] = (),
    recent: Sequence[int] = (),
    window: int = 0,
    allowed: bytes = b"",
    adapter: str = "",
    logprobs: int | None = None,
    skip: int = 0,
) -> DecodeRun:
    """As `decode`, but the tokens keep to a grammar, from where the matcher stands; the matcher does not move.

    The run is over where nothing can follow but a stop token, and where `skip` tokens or more are forced (0: it goes on
    there; 1: where 10 or more are, which usually pays). `take` raises Busy if the worker has not compiled the grammar
    yet: issue the run again in a moment.
    """
    given = run_arguments(
        queue, embed, sampler, input, position, context, pages, steps, stop, recent, window, allowed, adapter, logprobs
    )
    constraint = whole(matcher, "matcher"), whole(skip, "skip")
    number = call(bindings.grammar.decode_with_matcher, *given[:3], *constraint, *given[3:])
    return DecodeRun(number, logprobs is not None)
