"""Runs many short pieces of work, some at a time."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Texts that run at a time: enough to fill waves, few enough for the pages of an inferlet."""


async def each(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """What `work` gives for each item, in order. The next item begins when any has ended."""
    rest = iter(enumerate(items))
    found: dict[int, R] = {}

    async def worker() -> None:
        for place, item in rest:
            found[place] = await work(item)

    await gather(*(worker() for _ in range(min(AT_ONCE, len(items)))))
    return [found[place] for place in range(len(items))]
