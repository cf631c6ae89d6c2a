"""Log-probabilities of given continuations, and of tokens that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

from inferlet_sdk import traits
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import TooLong
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits import Dist
from inferlet_sdk.traits.arguments import room
from inferlet_sdk.traits.runs import TokenLogprobs

MAX_CHUNK = 64
"""Most tokens that one `forward` scores: each needs an output embed, and a call reads as many as a batch has rows."""


async def score_tokens(sequence: TokenSequence, tokens: Sequence[int]) -> list[float]:
    """Log-probability of each token, given the sequence and the tokens before it. The sequence does not change."""
    return [one.logprob for one in await score_listed(sequence, tokens, 0)]


async def score_listed(sequence: TokenSequence, tokens: Sequence[int], alternatives: int) -> list[TokenLogprobs]:
    """Scores as `score_tokens` does, each token with the most probable tokens in its place.

    A fork stores long continuations in its own pages, so they may be split.
    """
    branch = sequence.fork()
    try:
        with branch:
            return await append_scored(branch, tokens, alternatives, run_last=False)
    finally:
        branch.close()


async def append_scored(
    sequence: TokenSequence, tokens: Sequence[int], alternatives: int, run_last: bool
) -> list[TokenLogprobs]:
    """Appends tokens to a sequence that works; returns the score of each. The last one needs no run for that: it has
    one if `run_last`."""
    _check_room(sequence, len(tokens) - (not run_last))
    sequence.flush()
    scores: list[TokenLogprobs] = []
    for start in range(0, len(tokens), MAX_CHUNK):
        chunk = tokens[start : start + MAX_CHUNK]
        is_last = start + len(chunk) == len(tokens)
        scores += await _append_chunk(sequence, chunk, alternatives, len(chunk) - (is_last and not run_last))
    return scores


def _check_room(sequence: TokenSequence, tokens: int) -> None:
    """Raises TooLong if so many tokens do not fit behind those of a sequence."""
    length, info = sequence.offset + len(sequence.tokens), sequence.info
    if tokens > room(length, info.max_context, info.name):
        raise TooLong(
            f"{tokens} tokens do not fit behind the {length} of the context, as {info.name} takes at most "
            f"{info.max_context}: give fewer, or cut the context with `truncate`"
        )


async def _append_chunk(
    sequence: TokenSequence, tokens: Sequence[int], alternatives: int, run: int
) -> list[TokenLogprobs]:
    """The sequence's output embed scores the first token; the output of each token that runs scores the next one."""
    queue, output = sequence.queue, Embeds((sequence.output_embed, 1))
    embeds = sequence.queues.alloc_embeds(queue, 2 * run) if run else Embeds(())
    outputs, scored, asked = embeds[run:], tokens[1 : run + 1], _Asked(queue, alternatives)
    try:
        if run:
            sequence.run(tokens[:run], embeds[:run], outputs)
        asked.ask(output, tokens[:1])
        if scored:
            asked.ask(outputs[: len(scored)], scored)
    except BaseException:
        asked.give_up()
        if run:
            traits.dealloc_emb(queue, embeds)
        raise
    if run:
        sequence.tokens += tokens[:run]
        sequence.take_output(outputs[-1:])
        traits.dealloc_emb(queue, embeds[:-1])
    sequence.tokens += tokens[run:]
    return await asked.scores()


async def logprobs_at(queue: int, outputs: Embeds, tokens: Sequence[int], alternatives: int) -> list[TokenLogprobs]:
    """The score of a token at each output, with as many alternatives."""
    asked = _Asked(queue, alternatives)
    asked.ask(outputs, tokens)
    return await asked.scores()


class _Asked:
    """Scores that were asked for."""

    def __init__(self, queue: int, alternatives: int) -> None:
        self._queue = queue
        self._alternatives = alternatives
        self._own: list[HostFuture[list[float]]] = []
        self._others: list[HostFuture[list[Dist]]] = []

    def ask(self, outputs: Embeds, tokens: Sequence[int]) -> None:
        """Those of a token at each output."""
        self._own.append(traits.get_logprobs_at(self._queue, outputs, tokens))
        if self._alternatives:
            self._others.append(traits.get_next_dists(self._queue, outputs, self._alternatives))

    async def scores(self) -> list[TokenLogprobs]:
        """All of them, in order. If the wait is cancelled, they are given up."""
        try:
            own = [score for one in self._own for score in await one]
            dists = [dist for one in self._others for dist in await one]
        finally:
            self.give_up()
        others = map(_alternatives, dists) if self._alternatives else ([] for _ in own)
        return [TokenLogprobs(*pair) for pair in zip(own, others, strict=True)]

    def give_up(self) -> None:
        """Cancels those that were not taken."""
        for own in self._own:
            own.cancel()
        for other in self._others:
            other.cancel()


def _alternatives(dist: Dist) -> list[tuple[int, float]]:
    return [(token, log(p) if p else -inf) for token, p in zip(dist.tokens, dist.probabilities, strict=True)]
