"""Fused: sampling that stays on the worker (paper, section 7.4)."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture, TokenFuture, token_ids

__all__ = [
    "Verified",
    "create_sampler",
    "destroy_sampler",
    "forward_with_sampling",
    "sample",
    "sample_constrained",
    "verify",
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
    seed: int | None = None,
) -> int:
    """Creates a sampler for `sample`. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep all tokens; penalties
    of 1, 0 and 0 change nothing.
    """
    config = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "seed": seed,
    }
    return int(call(bindings.fused.create_sampler, json.dumps(config)))


def destroy_sampler(sampler: int) -> None:
    """Frees a sampler."""
    call(bindings.fused.destroy_sampler, sampler)


def sample(queue: int, embed: int, sampler: int) -> TokenFuture:
    """Samples a token at an output embed. `embed_txt` accepts the future before its value is known."""
    return TokenFuture(call(bindings.fused.sample, queue, embed, sampler), bindings.fused.take_token)


def forward_with_sampling(
    queue: int,
    tokens: Sequence[int | TokenFuture],
    positions: Sequence[int],
    inputs: Embeds,
    context: Pages,
    output: Pages,
    output_embed: int,
    sampler: int,
) -> TokenFuture:
    """Does `embed_txt`, `forward` and `sample` in one call."""
    number = call(
        bindings.fused.forward_with_sampling,
        queue,
        token_ids(tokens),
        list(positions),
        list(inputs.ranges),
        list(context.ranges),
        list(output.ranges),
        output_embed,
        sampler,
    )
    return TokenFuture(number, bindings.fused.take_token)


def sample_constrained(
    queue: int, embed: int, sampler: int, recent: Sequence[int | TokenFuture] = (), allowed: bytes = b""
) -> TokenFuture:
    """Does `sample` with penalties over `recent` tokens, among the tokens whose bit is set in `allowed` (lowest bit
    first).
    """
    mask = base64.b64encode(allowed).decode()
    number = call(bindings.fused.sample_constrained, queue, embed, sampler, token_ids(recent), mask)
    return TokenFuture(number, bindings.fused.take_token)


def verify(queue: int, embeds: Embeds, draft: Sequence[int], sampler: int) -> HostFuture[Verified]:
    """Checks a draft of tokens in one call: `embeds` are the outputs at the last token and at each token of the draft.

    The tokens are exactly those that sampling one by one would give. The sampler must have no penalties.
    """
    number = call(bindings.fused.verify, queue, list(embeds.ranges), list(draft), sampler)
    return HostFuture(number, take_verified)


def take_verified(number: int) -> Verified:
    """The value of a done `verify` future."""
    return Verified(*bindings.fused.take_verified(number))
