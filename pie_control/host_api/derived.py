"""The host functions of the calls in `pie_control.calls`, derived from their records.

A WIT function's arguments are passed on as they are, but for handles: of these the guest gives its number. A call that
is answered by a future returns its number. What it gives is waited for by `await-number`, `await-text` or
`await-floats` if it is one alone or nothing, else by the WIT function `await-<value>`, named after the type of the
value. (The tokens of a decode run are taken by a function of their own.) A call of a trait that the queue's model lacks
is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ..calls import CALLS
from ..calls.kind import Call, Handle
from ..calls.values import Import, Run
from ..inferlets.blobs import KeptBlob
from ..inferlets.relations.children import ChildEnd
from ..inferlets.relations.topics import Reached
from ..inferlets.runs import RunBuffer
from ..services.http.exchange import Chunk
from .guest import Guest
from .interfaces import Function
from .limits.pending import weigher
from .suspending import suspending, when_done

T = TypeVar("T")

ALONE: dict[tuple[Any, ...], str] = {
    (): "await_number",
    (int,): "await_number",
    (str,): "await_text",
    (NDArray[np.float32],): "await_floats",
}
"""By the types of the fields of a value."""
TAKEN_ELSEWHERE = (Run, Import)
OF_NO_COMMAND: dict[str, tuple[type[Any], ...]] = {
    "await_number": (Reached, KeptBlob),
    "await_text": (ChildEnd, Chunk),
}
"""Values of functions that are no calls with a room, by what takes them."""


def functions() -> Iterator[tuple[str, str, Function]]:
    """Interface, name and function of every call, and of what takes its value."""
    for call in CALLS.values():
        if call.issue is not None:
            yield call.interface, call.name, _function(call)
    for (interface, name), kinds in _awaited().items():
        yield interface, name, _await(kinds)


def _awaited() -> dict[tuple[str, str], tuple[type[Any], ...]]:
    """Types of values by interface and name of what takes them."""
    found = {("core", name): kinds for name, kinds in OF_NO_COMMAND.items()}
    for value in {value: None for call in CALLS.values() for value in call.values if value not in TAKEN_ELSEWHERE}:
        taken_by = _taken_by(value)
        found[taken_by] = (*found.get(taken_by, ()), value)
    return found


def _taken_by(value: type[Any]) -> tuple[str, str]:
    """Interface and name. One that is not a number or a text alone has a function in the interface of its room."""
    items = tuple(get_type_hints(value).values())
    if items in ALONE:
        return "core", ALONE[items]
    return value.__module__.split(".")[-2], "await_" + re.sub(r"(?<!^)(?=[A-Z])", "_", value.__name__).lower()


def _await(kinds: tuple[type[Any], ...]) -> Function:
    @suspending
    def wait(guest: Guest, future: int) -> Any:
        def take() -> Any:
            value = guest.futures.take(future, *kinds)
            if isinstance(value, KeptBlob):
                return guest.add_blob(value.blob)
            return _plain_value(value)

        return when_done(guest, future, take)

    return wait


def _plain_value(value: Any) -> Any:
    """What a guest is given of a value."""
    if hasattr(value, "packed"):
        return value.packed()
    if len(value) > 1:
        return value
    return value[0] if value else 0


def _function(call: Call) -> Function:
    function = _plain(call) if call.value is None else _awaited_at_once(call) if call.waits else _answered(call)
    names = ("guest", "queue", *call.parameters)
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _plain(call: Call) -> Function:
    assert call.issue is not None
    name, issue, weigh = call.name, call.issue, weigher(call)
    handles = _by_place(call, call.handles)

    def function(guest: Guest, queue: int, *arguments: Any) -> Any:
        space = guest.space(queue, name)
        if handles:
            arguments = _resolve(guest, arguments, handles)
        size = weigh(arguments)
        if size:
            guest.pending.check(size)
            space.check_large(size)
        value = issue(space, queue, *arguments)
        if size:
            space.note_large(size)
        return value

    return function


def _answered(call: Call) -> Function:
    """The function of a call with a future, which may be 0 for none: issues it, or leaves no future behind."""
    assert call.issue is not None
    name, issue = call.name, call.issue
    weigh, weigh_result = weigher(call), call.result_bytes
    handles, needs = _by_place(call, call.handles), _by_place(call, {one: f"{name}.{one}" for one in call.needs})
    run = call.run
    stops = call.parameters.index(run.stop) if run else 0

    def function(guest: Guest, queue: int, *arguments: Any) -> int:
        space = guest.space(queue, name)
        if needs:
            guest.check_needs(queue, needs, arguments)
        if handles:
            arguments = _resolve(guest, arguments, handles)
        size = weigh(arguments)
        result_size = weigh_result(*arguments) if weigh_result else 0
        if size or result_size:
            guest.pending.check(size + (result_size or 0))
            space.check_large(size)
        future = 0 if result_size is None else guest.futures.new(result_size)
        try:
            given = issue(space, queue, *arguments, future)
        except BaseException:
            guest.futures.forget(future)
            raise
        if run is not None:
            cancel = partial(run.cancel, space, future)
            guest.futures.begin_run(
                future, RunBuffer(arguments[stops], cancel, given, vocab_size=space.model.vocab_size)
            )
        if size:
            space.note_large(size)
        return future

    return function


def _awaited_at_once(call: Call) -> Function:
    """The function of a call for whose value the guest waits in place."""
    name, issue, kind, waits = call.name, call.issue, call.value, call.waits
    assert issue is not None
    assert kind is not None
    assert waits is not None

    @suspending
    def function(guest: Guest, queue: int, *arguments: Any) -> Any:
        space, futures = guest.space(queue, name), guest.futures
        size = waits(space, queue)
        guest.pending.check(size)
        future = futures.new(size)
        try:
            issue(space, queue, *arguments, future)
        except BaseException:
            futures.forget(future)
            raise
        return when_done(guest, future, lambda: _plain_value(futures.take(future, kind)))

    return function


def _by_place(call: Call, found: Mapping[str, T]) -> dict[int, T]:
    """What is found by the names of parameters, by their places behind the queue instead."""
    return {call.parameters.index(name): value for name, value in found.items()}


def _resolve(guest: Guest, arguments: tuple[Any, ...], handles: Mapping[int, Handle]) -> tuple[Any, ...]:
    """What the handles among the arguments stand for."""
    resolved = list(arguments)
    for place, handle in handles.items():
        number = resolved[place]
        resolved[place] = guest.handle(number, handle.kind) if number or not handle.optional else None
    return tuple(resolved)
