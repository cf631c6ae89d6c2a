"""Log-probabilities of given continuations."""

from __future__ import annotations

from collections.abc import Sequence

from inferlet_sdk import traits
from inferlet_sdk.generation.sequence import TokenSequence

MAX_CHUNK = 64
"""Most tokens that one `forward` scores: each needs an output embed, and a call reads as many as a batch has rows."""


async def score_tokens(sequence: TokenSequence, tokens: Sequence[int]) -> list[float]:
    """Log-probability of each token, given the sequence and the tokens before it. The sequence does not change.

    A fork stores long continuations in its own pages, so they may be split.
    """
    branch = sequence.fork()
    try:
        with branch:
            branch.flush()
            scores: list[float] = []
            for start in range(0, len(tokens), MAX_CHUNK):
                scores += await _score_chunk(branch, tokens[start : start + MAX_CHUNK])
            return scores
    finally:
        branch.close()


async def _score_chunk(sequence: TokenSequence, tokens: Sequence[int]) -> list[float]:
    """The sequence's output embed scores the first token; the output of each token scores the next one."""
    queue = sequence.queue
    first = traits.get_logprobs(queue, sequence.output_embed, tokens[:1])
    embeds = traits.alloc_emb(queue, 2 * len(tokens))
    inputs, outputs = embeds[: len(tokens)], embeds[len(tokens) :]
    sequence.run(tokens, inputs, outputs)
    others = traits.get_logprobs_at(queue, outputs[:-1], tokens[1:]) if len(tokens) > 1 else None
    sequence.tokens += tokens
    sequence.take_output(outputs[-1:])
    traits.dealloc_emb(queue, embeds[:-1])
    return [*await first, *(await others if others is not None else ())]
