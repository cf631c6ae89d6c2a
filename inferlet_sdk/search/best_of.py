"""Several samples of a continuation, and the best of them."""

from __future__ import annotations

from asyncio import ensure_future, gather
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from math import inf, isnan

from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.generation.sampling import DistSampler, Sampler
from inferlet_sdk.generation.stopping import StopRules
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.arguments import wrong

from .hypotheses import Found, Hypothesis, mean

MOST_SAMPLES = 2000
"""Each has a sampler and a detokenizer, and an inferlet may have 4096 of such."""

Judge = Callable[[str], float | Awaitable[float]]
"""A function of the text of a continuation, the greater the better, or an `async def`."""


async def sample_many(
    sequence: TokenSequence, samplers: Sequence[Sampler | DistSampler], rules: StopRules, judge: Judge | None
) -> list[Found]:
    """A continuation by each sampler, the best one first; the caller closes the branches."""
    if judge is not None and not callable(judge):
        raise wrong("score", "a function of a text that returns a number", judge)
    branches = [sequence.fork() for _ in samplers]
    tasks = [ensure_future(_sample(branch, one, rules, judge)) for branch, one in zip(branches, samplers, strict=True)]
    try:
        found = await gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await gather(*tasks, return_exceptions=True)  # their runs end with them
        for branch in branches:
            branch.close()
        raise
    pairs = map(Found, found, branches)
    return sorted(pairs, key=lambda one: one.hypothesis.score, reverse=True)


async def _sample(
    branch: TokenSequence, sampler: Sampler | DistSampler, rules: StopRules, judge: Judge | None
) -> Hypothesis:
    generation = Generation(branch, sampler, rules, logprobs=0 if judge is None else None)
    try:
        text = await generation.whole()
    finally:
        generation.end()
    if judge is None:
        score = mean([one.logprob for one in generation.logprobs or generation.sampled])
    else:
        given = judge(text)
        score = _score(await given if isawaitable(given) else given)
    return Hypothesis(tuple(generation.tokens), text, score, generation.stop_reason or "ended")


def _score(given: object) -> float:
    """What a judge gave as a number; one that is NaN is the worst."""
    try:
        number = float(given)  # type: ignore[arg-type]  # whatever is a number
        return -inf if isnan(number) else number
    except (TypeError, ValueError):
        raise wrong("score", "a function of a text that returns a number", given) from None
