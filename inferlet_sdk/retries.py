"""Trying again what fails now and then."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from inferlet_sdk.errors import RequestFailed, WorkerFailed
from inferlet_sdk.traits.arguments import number, whole, wrong

T = TypeVar("T")

On = type[BaseException] | tuple[type[BaseException], ...] | Callable[[Exception], bool]

LONGEST_PAUSE = 60.0
"""Seconds."""


@overload
async def retry(
    function: Callable[[], Awaitable[T]], times: int = ..., on: On = ..., pause: float = ..., factor: float = ...
) -> T: ...
@overload
async def retry(
    function: Callable[[], T], times: int = ..., on: On = ..., pause: float = ..., factor: float = ...
) -> T: ...
async def retry(
    function: Callable[[], Any],
    times: int = 3,
    on: On = (RequestFailed, WorkerFailed),
    pause: float = 0.5,
    factor: float = 2.0,
) -> Any:
    """What `function` gives, at the first of at most `times` calls that does not fail. It is a function without
    parameters, async or not.

    `on`: errors after which it is called again, as classes or as a function that is asked; others are raised at once.
    Between two calls there are `pause` seconds, then `factor` times as many, and so on, at most a minute. The last
    error is raised as it is, with a note that says how often it was tried.

        response = await retry(lambda: http_get(url), times=5, pause=1)
    """
    if not callable(function):
        raise wrong("function", "a function without parameters, as in `retry(lambda: http_get(url))`", function)
    whole(times, "times", least=1)
    seconds, factor = number(pause, "pause"), number(factor, "factor")
    for attempt in range(1, times + 1):
        try:
            value = function()
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            if not _is_worth_it(error, on):
                raise
            if attempt == times:
                error.add_note(f"retry: tried {times} times" if times > 1 else "retry: tried once")
                raise
        await asyncio.sleep(min(seconds, LONGEST_PAUSE))
        seconds *= factor
    raise AssertionError("it is given or raised")


def _is_worth_it(error: Exception, on: Any) -> bool:
    if isinstance(on, type | tuple):
        return isinstance(error, on)
    if not callable(on):
        raise wrong("on", "classes of errors, or a function of an error", on)
    return bool(on(error))
