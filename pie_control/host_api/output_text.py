"""output-text.wit: distributions and scores of the next token (paper, section 4.2)."""

from __future__ import annotations

from ..inferlets.inferlet import Inferlet
from ..scheduling import Dist, Logprobs
from .handles import issue, queue_of

DEFAULT_K = 256
"""The paper's default truncation of distributions."""


def get_next_dist(inferlet: Inferlet, queue: int, embed: int, k: int, temperature: float) -> int:
    found = queue_of(inferlet, queue)
    k = k or min(DEFAULT_K, found.model.description.vocab_size)
    return issue(inferlet, found.account.get_next_dist, found.number, embed, k, temperature)


def take_dist(inferlet: Inferlet, future: int) -> Dist:
    dist: Dist = inferlet.futures.take(future, Dist)
    return dist


def get_logprobs(inferlet: Inferlet, queue: int, embed: int, tokens: list[int]) -> int:
    found = queue_of(inferlet, queue)
    return issue(inferlet, found.account.get_logprobs, found.number, embed, tokens)


def take_logprobs(inferlet: Inferlet, future: int) -> object:
    return inferlet.futures.take(future, Logprobs).logprobs
