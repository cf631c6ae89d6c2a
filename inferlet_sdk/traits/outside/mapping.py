"""Many children, so many at a time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Self

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
    the iterator is closed (`aclosing`) or dropped. A wait for the next result that is cut short loses nothing.
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

    return _Results(run, inputs, at_once, ordered)


class _Results:
    """The results of calls, so many of which run at a time. A wait for the next one that is cancelled loses nothing."""

    def __init__(
        self, call: Callable[[Any], Coroutine[Any, Any, Any]], inputs: Iterable[Any], at_once: int, ordered: bool
    ) -> None:
        self._started: dict[asyncio.Task[Any], None] = {}
        self._done: dict[asyncio.Task[Any], None] = {}
        self._changed = asyncio.Event()
        self._call, self._source = call, iter(inputs)
        self._at_once, self._ordered = at_once, ordered

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while True:
            try:
                self._start_some()
                first = next(iter(self._started if self._ordered else self._done), None)
                if first in self._done:
                    del self._started[first], self._done[first]
                    return first.result()
            except BaseException:
                await self.aclose()
                raise
            if not self._started:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    def _start_some(self) -> None:
        done, changed = self._done, self._changed  # and not the iterator, which the program may drop

        def finished(one: asyncio.Task[Any]) -> None:
            done[one] = None
            changed.set()

        at_once, started = self._at_once, len(self._started)
        for one in itertools.islice(self._source, min(at_once - (started - len(done)), AHEAD * at_once - started)):
            result = asyncio.create_task(self._call(one))
            result.add_done_callback(finished)
            self._started[result] = None

    async def aclose(self) -> None:
        """Ends the children that run. Idempotent."""
        self._source = iter(())
        started = list(self._started)
        self.__del__()
        await asyncio.gather(*started, return_exceptions=True)

    def __del__(self) -> None:
        while self._started:
            self._started.popitem()[0].cancel()
