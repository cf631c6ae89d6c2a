"""Many calls, so many at a time: for `Client.map`."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from pie_control.errors import BadRequest

T = TypeVar("T")


async def mapped(
    call: Callable[[Any], Awaitable[T]], inputs: Iterable[Any], at_once: int, ordered: bool
) -> AsyncIterator[T]:
    """The results of calls, `at_once` at a time: in the order of the inputs, or as they come. The first error is
    raised in its turn, and cancels the calls that go on; so does closing the iterator."""
    if type(at_once) is not int or at_once < 1:
        raise BadRequest(f"at_once: give a number of 1 or more, not {at_once!r}")
    source, started = iter(inputs), deque[asyncio.Future[T]]()
    try:
        while True:
            room = at_once - sum(not one.done() for one in started)
            started.extend(asyncio.ensure_future(call(one)) for one in itertools.islice(source, room))
            if not started:
                return
            done = [one for one in (itertools.islice(started, 1) if ordered else started) if one.done()]
            if not done:
                await asyncio.wait([one for one in started if not one.done()], return_when="FIRST_COMPLETED")
                continue
            started.remove(done[0])
            yield done[0].result()
    finally:
        for one in started:
            one.cancel()
        await asyncio.gather(*started, return_exceptions=True)
