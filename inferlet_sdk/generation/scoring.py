"""Log-probabilities of given continuations."""

from __future__ import annotations

from collections.abc import Sequence

from inferlet_sdk import traits
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.generation.sequence import TokenSequence

MAX_CHUNK = 256
"""Most tokens that one `forward` scores: each needs an output embed and a future."""


async def score_tokens(sequence: TokenSequence, tokens: Sequence[int]) -> list[float]:
    """Log-probability of each token, given the sequence and the tokens before it. The sequence does not change.

    A fork stores long continuations in its own pages, so they may be split.
    """
    with sequence:
        sequence.flush()
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
    inputs = traits.alloc_emb(sequence.queue, len(tokens))
    outputs = traits.alloc_emb(sequence.queue, len(tokens))
    futures = [traits.get_logprobs(sequence.queue, sequence.output_embed, tokens[:1])]
    sequence.run(tokens, inputs, outputs)
    futures += [_score_one(sequence, outputs[n], token) for n, token in enumerate(tokens[1:])]
    scores = [(await future)[0] for future in futures]
    traits.dealloc_emb(sequence.queue, inputs + outputs)
    _keep_last_output(sequence, tokens)
    return scores


def _score_one(sequence: TokenSequence, embed: int, token: int) -> HostFuture[list[float]]:
    return traits.get_logprobs(sequence.queue, embed, [token])


def _keep_last_output(sequence: TokenSequence, tokens: Sequence[int]) -> None:
    """Prepares the output embed for the next chunk."""
    sequence.tokens += tokens
    sequence.flush()
