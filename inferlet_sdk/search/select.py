"""The most likely of several continuations.

Continuations that begin alike are run once as far as they agree: they are the branches of a tree. A token that has
nothing behind it is only scored, not run.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Sequence

from inferlet_sdk.generation.scoring import append_scored
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.texts import common_beginning


async def most_likely(sequence: TokenSequence, options: Sequence[str], mean: bool) -> tuple[str, list[int]]:
    """The option of the highest probability, or of the highest one of a token on average, with its tokens."""
    if not options:
        raise ValueError("options: there is nothing to select from")
    tokens = [sequence.tokenize(option) for option in options]
    scores = [sum(one) / (max(len(one), 1) if mean else 1) for one in await score_all(sequence, tokens)]
    best = max(range(len(options)), key=scores.__getitem__)
    return options[best], tokens[best]


async def score_all(sequence: TokenSequence, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probabilities of the tokens of each continuation. The sequence does not change."""
    found: list[list[float]] = [[] for _ in continuations]
    branch = sequence.fork()
    await _score(branch, [(place, list(tokens)) for place, tokens in enumerate(continuations)], found)
    return found


async def _score(branch: TokenSequence, rest: list[tuple[int, list[int]]], found: list[list[float]]) -> None:
    """Scores what is left of some continuations behind a branch, and closes it."""
    try:
        groups: dict[int, list[tuple[int, list[int]]]] = {}
        for place, tokens in rest:
            if tokens:
                groups.setdefault(tokens[0], []).append((place, tokens))
        await gather(*(_score_group(branch, group, found) for group in groups.values()))
    finally:
        branch.close()


async def _score_group(parent: TokenSequence, group: list[tuple[int, list[int]]], found: list[list[float]]) -> None:
    """Scores continuations that begin with the same token."""
    length = common_beginning([tokens for _, tokens in group])
    branch = parent.fork()
    goes_on = any(len(tokens) > length for _, tokens in group)
    try:
        with branch:
            scores = await append_scored(branch, group[0][1][:length], 0, run_last=goes_on)
    except BaseException:
        branch.close()
        raise
    for place, _ in group:
        found[place] += [one.logprob for one in scores]
    await _score(branch, [(place, tokens[length:]) for place, tokens in group], found)
