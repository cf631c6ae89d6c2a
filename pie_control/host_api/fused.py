"""fused.wit: sampling on the worker (paper, section 7.4)."""

from __future__ import annotations

import base64
import random
from functools import partial

from ..errors import InvalidArgument
from ..inferlets.inferlet import Inferlet
from ..scheduling import SamplingParams, TokenValue
from .handles import clock, handle_of, issue, queue_of


class Sampler:
    """Parameters and random numbers of a sampler. The n-th sample of a seed is always the same draw, so tokens do not
    depend on what else is batched."""

    __slots__ = ("_random", "params")

    def __init__(self, params: SamplingParams, seed: int | None) -> None:
        self.params = params
        self._random = random.Random(seed).random

    def draw(self) -> float:
        return self._random()


def create_sampler(inferlet: Inferlet, config: tuple[float, int, float, float, float, float, float, int | None]) -> int:
    return inferlet.add_handle(Sampler(SamplingParams(*config[:7]), config[7]))


def destroy_sampler(inferlet: Inferlet, sampler: int) -> None:
    handle_of(inferlet, sampler, Sampler)
    del inferlet.handles[sampler]


def sample(inferlet: Inferlet, queue: int, embed: int, sampler: int) -> int:
    found, chosen = queue_of(inferlet, queue), handle_of(inferlet, sampler, Sampler)
    return issue(inferlet, found.account.sample, found.number, embed, chosen.params, chosen.draw())


def sample_constrained(
    inferlet: Inferlet, queue: int, embed: int, sampler: int, recent: list[int], allowed: str
) -> int:
    found, chosen = queue_of(inferlet, queue), handle_of(inferlet, sampler, Sampler)
    call = partial(found.account.sample, recent=recent, allowed=_bits(allowed) if allowed else None)
    return issue(inferlet, call, found.number, embed, chosen.params, chosen.draw())


def _bits(allowed: str) -> bytes:
    try:
        return base64.b64decode(allowed, validate=True)
    except ValueError as error:  # binascii.Error is one
        raise InvalidArgument(f"`allowed` is not base64: {error}") from None


def forward_with_sampling(
    inferlet: Inferlet,
    queue: int,
    tokens: list[int],
    positions: list[int],
    input_embeds: list[int],
    context: list[int],
    output_pages: list[int],
    output_embed: int,
    sampler: int,
) -> int:
    found, chosen = queue_of(inferlet, queue), handle_of(inferlet, sampler, Sampler)
    account, now = found.account, clock()
    account.embed_txt(found.number, tokens, positions, input_embeds, now)
    account.forward(found.number, context, input_embeds, output_pages, (output_embed, 1), now)
    return issue(inferlet, account.sample, found.number, output_embed, chosen.params, chosen.draw())


def take_token(inferlet: Inferlet, future: int) -> int:
    token: int = inferlet.futures.take(future, TokenValue).token
    return token
