"""Coroutines that mostly need not wait: they run at once, and become tasks only when they wait.

A task that never waits costs a turn of the event loop and its own making, which is a good part of what a launch costs.
asyncio can do this itself from Python 3.12 on (`eager_start`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Runs a coroutine until it first waits; the task that goes on with it then, or None if it is done. Raises what it
    raises before. Meanwhile `asyncio.current_task` is the caller's."""
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return asyncio.create_task(_go_on(work, awaited))


async def _go_on(work: Coroutine[Any, Any, None], awaited: object) -> None:
    await _rest(work, awaited)


@coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: object) -> Generator[object, Any, None]:
    """What is left of a coroutine that waits for `awaited`."""
    while True:
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:
            step = partial(work.throw, error)
        try:
            awaited = step()
        except StopIteration:
            return
