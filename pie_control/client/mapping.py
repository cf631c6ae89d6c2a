"""Many calls, so many at a time: for `Client.map`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from pie_control.errors import BadRequest

T = TypeVar("T")

AHEAD = 4
"""At most `AHEAD` times `at_once` results wait for one before them that is not there yet."""


async def mapped(
    call: Callable[[Any], Awaitable[T]], inputs: Iterable[Any], at_once: int, ordered: bool
) -> AsyncGenerator[T, None]:
    """The results of calls, `at_once` at a time: in the order of the inputs, or as they come. The first error is
    raised in its turn, and cancels the calls that go on; so does closing the iterator."""
    if type(at_once) is not int or at_once < 1:
        raise BadRequest(f"at_once: give a number of 1 or more, not {at_once!r}")
    source, started, done = iter(inputs), dict[asyncio.Future[T], None](), dict[asyncio.Future[T], None]()
    changed = asyncio.Event()

    def finished(one: asyncio.Future[T]) -> None:
        done[one] = None
        changed.set()

    def start_some() -> None:
        room = min(at_once - (len(started) - len(done)), AHEAD * at_once - len(started))
        for one in itertools.islice(source, room):
            result = asyncio.ensure_future(call(one))
            result.add_done_callback(finished)
            started[result] = None

    try:
        start_some()
        while started:
            first = next(iter(started if ordered else done), None)
            if first in done:
                del started[first], done[first]
                yield first.result()
            else:
                changed.clear()
                await changed.wait()
            start_some()
    finally:
        for one in started:
            one.cancel()
        await asyncio.gather(*started, return_exceptions=True)
