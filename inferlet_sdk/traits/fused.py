"""Fused: sampling that stays on the worker (paper, section 7.4)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture, SampledToken, TokenFuture
from inferlet_sdk.traits.arguments import (
    LARGEST_U32,
    LARGEST_U64,
    HasQueue,
    biases,
    embed_ranges,
    number,
    one_embed,
    queue_number,
    references,
    sampler_number,
    token_mask,
    whole,
)
from inferlet_sdk.traits.arguments import tokens as token_list
from inferlet_sdk.traits.forwarding import Mask, asked_dist, forward_with, run_step, step_lists
from inferlet_sdk.traits.output_text import Dist, await_dist, dist_of
from inferlet_sdk.traits.runs import DecodeRun, RunTokens, decode, watch_run

__all__ = [
    "DecodeRun",
    "RunTokens",
    "ScoredToken",
    "Verified",
    "continue_with_dist",
    "create_sampler",
    "decode",
    "destroy_sampler",
    "forward_with",
    "forward_with_dist",
    "forward_with_sampling",
    "sample",
    "sample_with_logprobs",
    "verify",
    "watch_run",
]


@dataclass(frozen=True)
class Verified:
    """The outcome of `verify`."""

    accepted: int
    """Number of draft tokens that the sampler would have chosen too."""
    token: int
    """The token after them."""


def create_sampler(
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    typical_p: float = 1.0,
) -> int:
    """Creates a sampler for `sample`. Temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and typical_p 1 keep all
    tokens; penalties of 1, 0 and 0 change nothing. `logit_bias` is added to the logits of at most 512 tokens, -1000 to
    1000 each.
    """
    config = {
        "temperature": number(temperature, "temperature"),
        "top_k": whole(top_k, "top_k"),
        "top_p": number(top_p, "top_p"),
        "min_p": number(min_p, "min_p"),
        "repetition_penalty": number(repetition_penalty, "repetition_penalty"),
        "frequency_penalty": number(frequency_penalty, "frequency_penalty"),
        "presence_penalty": number(presence_penalty, "presence_penalty"),
        "logit_bias": None if logit_bias is None else biases(logit_bias),
        "seed": None if seed is None else whole(seed, "seed", most=LARGEST_U64),
        "typical_p": number(typical_p, "typical_p"),
    }
    return int(call(bindings.fused.create_sampler, json.dumps(config)))


def destroy_sampler(sampler: int) -> None:
    """Frees a sampler."""
    call(bindings.core.drop, sampler_number(sampler))


def sample(
    queue: int | HasQueue,
    embed: int | Embeds,
    sampler: int,
    recent: Sequence[int | TokenFuture] = (),
    allowed: bytes = b"",
) -> TokenFuture:
    """Samples a token at an output embed, with penalties over `recent` tokens, among the tokens whose bit is set in
    `allowed` (lowest bit first; b"": all). `embed_txt` accepts the future before its value is known."""
    return TokenFuture(_sample(queue, embed, sampler, recent, allowed, 0), bindings.core.await_number)


def _sample(
    queue: int | HasQueue,
    embed: int | Embeds,
    sampler: int,
    recent: Sequence[int | TokenFuture],
    allowed: bytes,
    logprobs: int,
) -> int:
    """The future of a token; `logprobs`: how many log-probabilities come with it."""
    future: int = call(
        bindings.fused.sample,
        queue_number(queue),
        one_embed(embed),
        sampler_number(sampler),
        references(recent, "recent"),
        base64.b64encode(token_mask(allowed)).decode(),
        logprobs,
    )
    return future


@dataclass(frozen=True)
class ScoredToken:
    """A token with its log-probability."""

    token: int
    logprob: float
    """The model's own, whatever the sampler is."""
    alternatives: list[tuple[int, float]]
    """The most probable tokens in order, with theirs."""


def sample_with_logprobs(
    queue: int | HasQueue,
    embed: int | Embeds,
    sampler: int,
    alternatives: int = 0,
    recent: Sequence[int | TokenFuture] = (),
    allowed: bytes = b"",
) -> ScoredTokenFuture:
    """Does `sample`, and gives the log-probability of the token and of the `alternatives` most probable ones (at most
    32). `embed_txt` accepts the future before its value is known."""
    logprobs = 1 + whole(alternatives, "alternatives", most=LARGEST_U32 - 1)
    return ScoredTokenFuture(_sample(queue, embed, sampler, recent, allowed, logprobs), await_scored_token)


class ScoredTokenFuture(SampledToken[ScoredToken]):
    """A token that is being sampled, with log-probabilities."""

    __slots__ = ()


def await_scored_token(future: int) -> ScoredToken:
    """The value of a `sample_with_logprobs` future."""
    token, tokens, logprobs = bindings.fused.await_scored_token(future)
    return ScoredToken(token, logprobs[0], list(zip(tokens[1:], logprobs[1:], strict=True)))


def forward_with_sampling(
    queue: int | HasQueue,
    tokens: Sequence[int | TokenFuture],
    positions: Sequence[int],
    inputs: Embeds | Iterable[int],
    context: Pages | Iterable[int],
    output: Pages | Iterable[int],
    output_embed: int | Embeds,
    sampler: int,
    *,
    mask: Mask | None = None,
    adapter: str = "",
) -> TokenFuture:
    """Does `embed_txt`, `forward` and `sample` in one call; `mask` and `adapter` as in `forward`."""
    lists = step_lists(queue, tokens, positions, inputs, context, output, output_embed)
    chosen = sampler_number(sampler)
    return TokenFuture(run_step(lists, mask, adapter, sampler=chosen), bindings.core.await_number)


def forward_with_dist(
    queue: int | HasQueue,
    tokens: Sequence[int | TokenFuture],
    positions: Sequence[int],
    inputs: Embeds | Iterable[int],
    context: Pages | Iterable[int],
    output: Pages | Iterable[int],
    output_embed: int | Embeds,
    k: int = 256,
    temperature: float = 1.0,
    *,
    mask: Mask | None = None,
    adapter: str = "",
) -> HostFuture[Dist]:
    """Does `embed_txt`, `forward` and `get_next_dist` in one call; `mask` and `adapter` as in `forward`."""
    lists = step_lists(queue, tokens, positions, inputs, context, output, output_embed)
    return HostFuture(run_step(lists, mask, adapter, dist=asked_dist(k, temperature)), await_dist)


def continue_with_dist(queue: int | HasQueue, token: int | TokenFuture) -> Dist:
    """The step behind the last one of the queue that read a distribution without a mask: one token more, at the next
    position, with the same pages, output embed, adapter, `k` and `temperature`. Suspends the whole program until the
    distribution is there."""
    return dist_of(call(bindings.fused.continue_with_dist, queue_number(queue), *references([token], "token")))


def verify(
    queue: int | HasQueue, embeds: Embeds | Iterable[int], draft: Sequence[int], sampler: int
) -> HostFuture[Verified]:
    """Checks a draft of tokens in one call: `embeds` are the outputs at the last token and at each token of the draft.

    The tokens are exactly those that sampling one by one would give. The sampler must have no penalties.
    """
    arguments = queue_number(queue), embed_ranges(embeds, "embeds"), token_list(draft, "draft"), sampler_number(sampler)
    return HostFuture(call(bindings.fused.verify, *arguments), await_verified)


def await_verified(future: int) -> Verified:
    """The value of a `verify` future."""
    return Verified(*bindings.fused.await_verified(future))
