"""The agent of `benchmarks optimizations` as a client writes it for a server of completions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from .agents import observed
from .sides import Sides, new_prompt

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Apis:
    """A library of APIs, and what an agent does with some: `popular` ones, which all agents have, and others. For each
    it generates `tokens`, the first `written` of which are the call; the result has `result` tokens."""

    library: int
    popular: int
    each: int
    system: int
    doc: int
    query: int
    tokens: int
    written: int
    result: int


@dataclass(frozen=True)
class ApiTask:
    """One agent's prompt, in parts. Popular documentation comes first, and all in the order of the library, so that
    the prompts of agents begin alike as far as they can."""

    system: list[int]
    numbers: list[int]
    docs: list[list[int]]
    query: list[int]
    tokens: int
    written: int
    result: list[int]

    @property
    def prompt(self) -> list[int]:
        return [*self.system, *(token for doc in self.docs for token in doc), *self.query]


def make_task(apis: Apis, number: int) -> ApiTask:
    """The task of an agent. The APIs that are not popular are dealt like cards, and shuffled when all are dealt: so
    each is used as often as any other."""
    hand = apis.each - apis.popular
    dealt, place = divmod(number, (apis.library - apis.popular) // hand)
    cards = np.random.default_rng(dealt).permutation(np.arange(apis.popular, apis.library))
    numbers = [*range(apis.popular), *sorted(cards[place * hand : (place + 1) * hand].tolist())]
    docs = [np.random.default_rng(1000 + one).integers(65, 250, apis.doc).tolist() for one in numbers]
    return ApiTask(
        system=new_prompt(apis.system, 0),
        numbers=numbers,
        docs=docs,
        query=new_prompt(0, apis.query),
        tokens=apis.tokens,
        written=apis.written,
        result=observed(0, apis.result),
    )


async def plain(sides: Sides, task: ApiTask, call: Call) -> None:
    """Waits for each text, and for the result of its call."""
    prompt = task.prompt
    for _ in task.docs:
        choice = await sides.complete(prompt, task.tokens)
        await call()
        prompt += [*choice["token_ids"], *task.result]
    await sides.complete(prompt, task.tokens)


async def on_sight(sides: Sides, task: ApiTask, call: Call) -> None:
    """Streams each text, and calls as soon as the call is written; waits for results at the end only."""
    prompt, calls = task.prompt, list[asyncio.Future[object]]()
    for number, _ in enumerate(task.docs):
        tokens: list[int] = []
        async for piece in sides.stream(prompt, task.tokens):
            tokens += piece
            if len(tokens) >= task.written and len(calls) == number:
                calls.append(asyncio.ensure_future(call()))
        if len(calls) == number:  # of a server that tells no tokens, whose texts are read as fewer
            calls.append(asyncio.ensure_future(call()))
        prompt += [*tokens, *task.result]
    await sides.complete(prompt, task.tokens)
    await asyncio.gather(*calls)
