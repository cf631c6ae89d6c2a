"""Log-probabilities of given continuations, and of tokens that were chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf, log
from typing import TypeVar

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import TooLong
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.arguments import room
from inferlet_sdk.traits.runs import TokenLogprobs

T = TypeVar("T")
Read = Callable[[int, Embeds, Sequence[int]], Awaitable[list[T]]]
"""What reads the scores of tokens at outputs."""

MAX_CHUNK = 64
"""Most tokens that one `forward` scores: each needs an output embed, and a call reads as many as a batch has rows."""


async def score_tokens(sequence: TokenSequence, tokens: Sequence[int]) -> list[float]:
    """Log-probability of each token, given the sequence and the tokens before it. The sequence does not change.

    A fork stores long continuations in its own pages, so they may be split.
    """
    branch = sequence.fork()
    try:
        with branch:
            return await append_scored(branch, tokens, run_last=False)
    finally:
        branch.close()


async def score_listed(sequence: TokenSequence, tokens: Sequence[int], alternatives: int) -> list[TokenLogprobs]:
    """Scores as `score_tokens` does, each token with the most probable tokens in its place."""

    def read(queue: int, outputs: Embeds, scored: Sequence[int]) -> Awaitable[list[TokenLogprobs]]:
        return logprobs_at(queue, outputs, scored, alternatives)

    branch = sequence.fork()
    try:
        with branch:
            return await _append_by(read, branch, tokens, run_last=False)
    finally:
        branch.close()


async def append_scored(sequence: TokenSequence, tokens: Sequence[int], run_last: bool) -> list[float]:
    """Appends tokens to a sequence that works; returns the log-probability of each. The last one needs no run for that:
    it has one if `run_last`."""
    return await _append_by(traits.get_logprobs_at, sequence, tokens, run_last)


async def _append_by(read: Read[T], sequence: TokenSequence, tokens: Sequence[int], run_last: bool) -> list[T]:
    _check_room(sequence, len(tokens) - (not run_last))
    sequence.flush()
    scores: list[T] = []
    for start in range(0, len(tokens), MAX_CHUNK):
        chunk = tokens[start : start + MAX_CHUNK]
        is_last = start + len(chunk) == len(tokens)
        scores += await _append_chunk(read, sequence, chunk, len(chunk) - (is_last and not run_last))
    return scores


def _check_room(sequence: TokenSequence, tokens: int) -> None:
    """Raises TooLong if so many tokens do not fit behind those of a sequence."""
    length, info = sequence.offset + len(sequence.tokens), sequence.info
    if tokens > room(length, info.max_context, info.name):
        raise TooLong(
            f"{tokens} tokens do not fit behind the {length} of the context, as {info.name} takes at most "
            f"{info.max_context}: give fewer, or cut the context with `truncate`"
        )


async def _append_chunk(read: Read[T], sequence: TokenSequence, tokens: Sequence[int], run: int) -> list[T]:
    """The sequence's output embed scores the first token; the output of each token that runs scores the next one."""
    queue, output, embeds = sequence.queue, Embeds((sequence.output_embed, 1)), Embeds(())
    if run:
        embeds = traits.alloc_emb(queue, 2 * run)
        sequence.run(tokens[:run], embeds[:run], embeds[run:])
    outputs, scored = embeds[run:], tokens[1 : run + 1]
    first = read(queue, output, tokens[:1])
    others = read(queue, outputs[: len(scored)], scored) if scored else None
    if run:
        sequence.tokens += tokens[:run]
        sequence.take_output(outputs[-1:])
        traits.dealloc_emb(queue, embeds[:-1])
    sequence.tokens += tokens[run:]
    return [*await first, *(await others if others is not None else ())]


def logprobs_at(
    queue: int, outputs: Embeds, tokens: Sequence[int], alternatives: int
) -> Awaitable[list[TokenLogprobs]]:
    """The score of a token at each output, with as many alternatives. The calls are issued at once."""
    own = traits.get_logprobs_at(queue, outputs, tokens)
    dists = traits.get_next_dists(queue, outputs, alternatives) if alternatives else None
    return _listed(own, dists, len(tokens))


async def _listed(own: Awaitable[list[float]], dists: Awaitable[list[Dist]] | None, count: int) -> list[TokenLogprobs]:
    others: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    if dists is not None:
        others = [
            [(n, log(p) if p else -inf) for n, p in zip(dist.tokens, dist.probabilities, strict=True)]
            for dist in await dists
        ]
    return [TokenLogprobs(*pair) for pair in zip(await own, others, strict=True)]
