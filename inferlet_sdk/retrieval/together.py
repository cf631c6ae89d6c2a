"""Runs many short pieces of work, as many at a time as there are pages for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from inferlet_sdk import traits
from inferlet_sdk.sequences.queues import Queues
from inferlet_sdk.traits.core import ModelInfo

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Texts that run at a time: enough to fill waves."""


def pages_of(info: ModelInfo, tokens: Sequence[int]) -> int:
    """The pages that a text takes while it runs."""
    return -(-len(tokens) // info.page_size) + info.state_pages


def _free_pages() -> int:
    """How many pages the inferlet may still take."""
    usage = traits.usage()
    return usage.max_pages - usage.pages


async def each(
    work: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], pages: Callable[[T], int], queues: Queues
) -> list[R]:
    """What `work` gives for each item, in order. An item begins when those that run leave room for its pages; one with
    more pages than there is room for runs alone. If one fails, the others end."""
    waiting, begun, running = deque(items), list[asyncio.Task[R]](), dict[asyncio.Task[R], int]()
    room = _free_pages()
    try:
        while waiting or running:
            new = 0  # pages of those that have not taken theirs yet
            while waiting and len(running) < AT_ONCE:
                need = pages(waiting[0])
                # Pages that were given back count until commands that were issued before have run, those of others too.
                if running and (sum(running.values()) + need > room or new + need > _free_pages()):
                    break
                if begun and not running and need > _free_pages():
                    with queues.some() as queue:
                        await traits.synchronize(queue)
                new += need
                begun.append(asyncio.create_task(work(waiting.popleft())))
                running[begun[-1]] = need
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                del running[task]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [task.result() for task in begun]
