"""Many children, so many at a time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from inferlet_sdk.traits.arguments import flag, whole
from inferlet_sdk.traits.outside.children import launch

AHEAD = 4
"""At most `AHEAD` times `at_once` results wait for one before them that is not there yet."""


def map_children(
    program: str | Callable[..., Any] | None,
    inputs: Iterable[Any],
    /,
    *,
    at_once: int = 16,
    ordered: bool = True,
    environment: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> AsyncIterator[Any]:
    """The results of one child for each input, the first argument of its `main`:

        async for result in map_children("summarize", urls, at_once=8):

    At most `at_once` run at a time, of the 64 that a family may have. In the order of the inputs, or with
    `ordered=False` as they finish. An input is a JSON value; a text is no word of a command line here. `kwargs` are
    those of `launch`, the same for all. Raises as `launch` and `await child`; the children that run then end, and when
    the iterator is closed (`aclosing`).
    """
    whole(at_once, "at_once", least=1)
    flag(ordered, "ordered")

    async def run(value: Any) -> Any:
        env = {**(environment or {}), "args": json.dumps({"0": value})} if isinstance(value, str) else environment
        child = launch(program, value, environment=env, **kwargs)
        try:
            return await child
        except BaseException:
            child.cancel()
            raise

    return _results(run, inputs, at_once, ordered)


async def _results(
    call: Callable[[Any], Coroutine[Any, Any, Any]], inputs: Iterable[Any], at_once: int, ordered: bool
) -> AsyncIterator[Any]:
    source, started, done = iter(inputs), dict[asyncio.Task[Any], None](), dict[asyncio.Task[Any], None]()
    changed = asyncio.Event()

    def finished(one: asyncio.Task[Any]) -> None:
        done[one] = None
        changed.set()

    def start_some() -> None:
        room = min(at_once - (len(started) - len(done)), AHEAD * at_once - len(started))
        for one in itertools.islice(source, room):
            result = asyncio.create_task(call(one))
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
