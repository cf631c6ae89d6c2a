"""Decode runs: many steps of one sequence in one command (fused.wit)."""

from __future__ import annotations

import base64
import json
from array import array
from binascii import a2b_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.event_loop import loop_with_others
from inferlet_sdk.traits.arguments import (
    HasQueue,
    flag,
    one_embed,
    page_ranges,
    queue_number,
    sampler_number,
    texts,
    token_mask,
    two_texts,
    whole,
)
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.arguments import tokens as token_list

MOST_STOPS = 64
"""Stop tokens of one run."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of the model itself, whatever the sampler is."""

    logprob: float
    """The log-probability of the token itself."""
    alternatives: list[tuple[int, float]]
    """The most probable tokens in order, with theirs."""


def unpack_logprobs(count: int, packed: str) -> list[TokenLogprobs]:
    """The log-probabilities of `count` tokens, as `take-run` packs them: all have as many alternatives."""
    if not count or not packed:
        return []
    data = a2b_base64(packed)
    ids, values = array("I", data[: len(data) // 2]), array("f", data[len(data) // 2 :])
    pairs, each = list(zip(ids, values, strict=True)), len(values) // count
    return [TokenLogprobs(values[n], pairs[n + 1 : n + each]) for n in range(0, len(values), each)]


@dataclass(frozen=True)
class RunTokens:
    """What a decode run has given since it was asked before."""

    tokens: list[int]
    texts: list[str]
    """What each token completes; empty without a detokenizer."""
    over: bool
    """Whether that was all, and the run has ended."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One entry for each token, if the run asked for them."""


class DecodeRun:
    """A run that goes on whether its tokens are taken or not."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def take(self, detokenizer: int = 0) -> RunTokens:
        """Waits until there are tokens, or the run is over. A stop token is the last one."""
        detokenizer = whole(detokenizer, "detokenizer")
        loop = loop_with_others()
        if loop is not None:
            await loop.any_host_future((self.number,))
        tokens, texts, over, packed = call(bindings.fused.take_run, self.number, detokenizer)
        return RunTokens(tokens, texts, over, unpack_logprobs(len(tokens), packed))

    def cancel(self) -> None:
        """Ends the run and drops what was not taken."""
        call(bindings.core.cancel, self.number)


def decode(
    queue: int | HasQueue,
    embed: int | Embeds,
    sampler: int,
    input: int | Embeds,
    position: int,
    context: Pages | Iterable[int],
    pages: Pages | Iterable[int],
    steps: int,
    stop: Sequence[int] = (),
    recent: Sequence[int] = (),
    window: int = 0,
    allowed: bytes = b"",
    logprobs: int | None = None,
    adapter: str = "",
    matcher: int = 0,
    skip: int = 0,
) -> DecodeRun:
    """Samples at `embed`, puts the token at `position` into embed `input`, runs it over `context` with its keys in the
    next free slot of `pages`, samples again, and so on: until there are `steps` tokens, or one of `stop`.

    `recent` are tokens before the run that penalties count, together with those of the run; of all, the last `window`
    (0: all). `allowed` as in `sample`, `adapter` as in `forward_with_adapter`. `logprobs`: a number of
    alternatives, at most 32; each token comes with its log-probability and theirs. Raises InvalidState if there are too
    few free slots.

    With a `matcher` the tokens keep to a grammar, from where it stands; it does not move. Then the run is over where
    nothing can follow but a stop token, and where `skip` tokens or more are forced (0: it goes on there; 1: where 10 or
    more are, which usually pays). `take` raises Busy if the worker has not compiled the grammar yet: issue the run
    again in a moment.
    """
    number = call(
        bindings.fused.decode,
        queue_number(queue),
        one_embed(embed),
        sampler_number(sampler),
        one_embed(input, "input"),
        whole(position, "position"),
        page_ranges(context, "context"),
        page_ranges(pages, "pages"),
        whole(steps, "steps"),
        token_list(stop, "stop"),
        _options(recent, window, allowed, logprobs, adapter),
        whole(matcher, "matcher"),
        whole(skip, "skip"),
    )
    return DecodeRun(number)


def _options(recent: Sequence[int], window: int, allowed: bytes, logprobs: int | None, adapter: str) -> str:
    """The JSON text that `decode` of fused.wit takes."""
    options: dict[str, object] = {
        "recent": token_list(recent, "recent"),
        "window": whole(window, "window"),
        "allowed": base64.b64encode(token_mask(allowed)).decode(),
        "adapter": checked_text(adapter, "adapter"),
    }
    if logprobs is not None:
        options["logprobs"] = whole(logprobs, "logprobs")
    return json.dumps(options)


def watch_run(
    run: DecodeRun,
    detokenizer: int,
    strings: Sequence[str] = (),
    send: bool = False,
    held: str = "",
    more: bool = False,
    frame: tuple[str, str] | None = None,
) -> None:
    """The host follows the text of a run, and `take` gives all tokens at its end, with their texts.

    The run ends at the first of the `strings`. With `send`, the text goes to the client as it comes, without the
    stop string and what comes after it. `held` is text before the run that may be the beginning of a stop string and
    was not sent; with `more`, such text at the end is not sent either, because another run goes on with the text.
    `frame`: each piece goes between these two texts, escaped as the inside of a JSON string.
    """
    if not isinstance(run, DecodeRun):
        raise TypeError(f"run: give what `decode` returned, not {type(run).__name__}")
    options: dict[str, object] = {
        "stop": texts(strings, "strings"),
        "send": flag(send, "send"),
        "held": checked_text(held, "held"),
        "more": flag(more, "more"),
    }
    if frame is not None:
        options["frame"] = two_texts(frame, "frame")
    call(bindings.fused.watch_run, run.number, whole(detokenizer, "detokenizer"), json.dumps(options))
