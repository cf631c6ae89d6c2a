"""The host functions of the calls in `pie_control.calls`, derived from their records.

A WIT function's arguments are passed on as they are, but for handles: where `issue` declares a `Sampler`, the guest
gives its number. A call that is answered by a future returns its number, and the WIT function `take-<value>`, named
after the type of the value, takes what it gives.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..calls import CALLS
from ..calls.kind import Call
from ..calls.sampler import Sampler
from ..calls.values import Done
from .guest import Guest
from .interfaces import Function

HANDLES: dict[str, type[object]] = {"Sampler": Sampler}
"""By the annotation of a parameter of `issue`."""


def functions() -> Iterator[tuple[str, str, Function]]:
    """Interface, name and function of every call, and of what takes its value."""
    for call in CALLS.values():
        yield call.interface, call.name, _function(call)
        if call.value is not None and call.value is not Done:
            yield call.interface, take_name(call.value), partial(_take, kind=call.value)


def take_name(value: type[Any]) -> str:
    """`take_` and the name of the type, in lower case with underscores."""
    return "take_" + re.sub(r"(?<!^)(?=[A-Z])", "_", value.__name__).lower()


def _take(guest: Guest, future: int, kind: type[Any]) -> Any:
    value = guest.futures.take(future, kind)
    return value[0] if len(value) == 1 else value


def _function(call: Call) -> Function:
    issue = call.issue
    with_handles = _with_handles(call)
    if call.value is None:

        def function(guest: Guest, queue: int, *arguments: Any) -> Any:
            return issue(guest.space(queue), queue, *arguments)

        assert with_handles is None, f"{call.name}: handles are for calls with a future"
        return function

    def answered(guest: Guest, queue: int, *arguments: Any) -> int:
        space = guest.space(queue)
        future = guest.futures.new()
        try:
            issue(space, queue, *(with_handles(guest, arguments) if with_handles else arguments), future)
        except BaseException:
            guest.futures.forget(future)
            raise
        return future

    return answered


def _with_handles(call: Call) -> Callable[[Guest, tuple[Any, ...]], list[Any]] | None:
    """Replaces numbers of handles by what they stand for; None if the call takes none."""
    parameters = list(inspect.signature(call.issue).parameters.values())[2:]  # behind space and queue
    kinds = {place: HANDLES[one.annotation] for place, one in enumerate(parameters) if one.annotation in HANDLES}
    if not kinds:
        return None

    def replace(guest: Guest, arguments: tuple[Any, ...]) -> list[Any]:
        replaced = list(arguments)
        for place, kind in kinds.items():
            replaced[place] = guest.handle(replaced[place], kind)
        return replaced

    return replace
