"""The strategies of several steps of `benchmarks features` as a client writes them for a server of completions: each
step is a request, and requests that need nothing of each other go at the same time. Prompts begin alike, so that the
server finds what it has cached. The program for Pie, `support/inferlets/paper/feature.py`, takes the same steps."""

from __future__ import annotations

import asyncio

from .agents import observed
from .sides import Sides

NAMES = ("skeleton", "tree", "recursion", "graph")
BRANCHES, POINTS, DEPTH, PARTS, TRIES = 3, 4, 3, 4, 3
HEADING = 8
"""Tokens that ask for a point, a call or a part."""


def headings(strategy: str) -> list[list[int]]:
    """What the points of an outline, the calls of a recursion by their numbers, or the parts of a graph begin with."""
    count = {"skeleton": POINTS, "tree": 0, "recursion": 2 << DEPTH, "graph": PARTS}[strategy]
    return [observed(place, HEADING) for place in range(count)]


async def ask(sides: Sides, strategy: str, prompt: list[int], tokens: int) -> object:
    """One request from its prompt to its answer, each step of which has so many tokens."""
    match strategy:
        case "skeleton":
            return await _skeleton(sides, prompt, tokens)
        case "tree":
            return await _tree(sides, prompt, tokens)
        case "recursion":
            return await _recursion(sides, prompt, tokens, headings(strategy), 1)
        case _:
            return await _graph(sides, prompt, tokens)


async def _skeleton(sides: Sides, prompt: list[int], tokens: int) -> object:
    """An outline, and then each of its points at the same time."""
    outline = [*prompt, *(await sides.complete(prompt, tokens))["token_ids"]]
    return await asyncio.gather(*(sides.complete([*outline, *one], tokens) for one in headings("skeleton")))


async def _tree(sides: Sides, prompt: list[int], tokens: int) -> object:
    """At each of as many levels as branches, several thoughts of which one is kept."""
    for level in range(BRANCHES):
        thoughts = await sides.choices(prompt, tokens, n=BRANCHES, temperature=1.0)
        prompt = [*prompt, *thoughts[level]["token_ids"]]
    return prompt


async def _recursion(sides: Sides, prompt: list[int], tokens: int, asked: list[list[int]], number: int) -> list[int]:
    """The call `number` asks what its two parts are; these are calls, too, and what they come to is put together. Calls
    of the last level have no parts."""
    answer: list[int] = (await sides.complete([*prompt, *asked[number]], tokens))["token_ids"]
    if 2 * number >= len(asked):
        return answer
    parts = (_recursion(sides, prompt, tokens, asked, 2 * number + side) for side in (0, 1))
    one, other = await asyncio.gather(*parts)
    whole: list[int] = (await sides.complete([*prompt, *one, *other], tokens))["token_ids"]
    return whole


async def _graph(sides: Sides, prompt: list[int], tokens: int) -> object:
    """Several tries at each part, of which one is kept; then these are merged two by two in the same way."""

    async def best(asked: list[int]) -> list[int]:
        tries = await sides.choices([*prompt, *asked], tokens, n=TRIES, temperature=1.0)
        found: list[int] = tries[0]["token_ids"]
        return found

    parts = await asyncio.gather(*(best(heading) for heading in headings("graph")))
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = await asyncio.gather(*(best([*one, *other]) for one, other in pairs))
    return parts[0]
