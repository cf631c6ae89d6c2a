"""The host functions of the calls in `pie_control.calls`, derived from their records.

A WIT function's arguments are passed on as they are, but for handles: where `issue` declares a `Sampler` or a
`Matcher`, the guest gives its number. A call that is answered by a future returns its number, and the WIT functions
`take-<value>` and `await-<value>`, named after the type of the value, take what it gives: the second one waits for it.
(The tokens of a decode run are taken by a function of their own.) A call of a trait that the queue's model lacks is
refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..calls import CALLS
from ..calls.fused import decode
from ..calls.grammar.matching import Matcher
from ..calls.input_image.image import Image
from ..calls.kind import Call
from ..calls.sampler import Sampler
from ..calls.values import Done, Run
from ..inferlets.runs import RunBuffer
from ..resources.address_space import AddressSpace
from .guest import Guest
from .interfaces import Function
from .limits.pending import RESULT_BYTES, weigher
from .suspending import suspending, when_done

HANDLES: dict[str, type[object]] = {"Sampler": Sampler, "Image": Image, "Matcher": Matcher}
"""By the annotation of a parameter of `issue`."""


def functions() -> Iterator[tuple[str, str, Function]]:
    """Interface, name and function of every call, and of what takes its value."""
    for call in CALLS.values():
        yield call.interface, call.name, _function(call)
        if call.value not in (None, Done, Run) and call.interface == _interface_of(call.value):
            take = _take(call.value)
            yield call.interface, "take_" + value_name(call.value), take
            yield call.interface, "await_" + value_name(call.value), _await(take)


def value_name(value: type[Any]) -> str:
    """The name of the type, in lower case with underscores."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", value.__name__).lower()


def _interface_of(value: type[Any]) -> str:
    """The interface of the call in whose room a type is: calls of others may give such values, too."""
    return value.__module__.split(".")[-2]


def _take(kind: type[Any]) -> Function:
    def take(guest: Guest, future: int) -> Any:
        value = guest.futures.take(future, kind)
        return value[0] if len(value) == 1 else value

    return take


def _await(take: Function) -> Function:
    @suspending
    def wait(guest: Guest, future: int) -> Any:
        return when_done(guest, future, lambda: take(guest, future))

    return wait


def _function(call: Call) -> Function:
    _space, *given = inspect.signature(call.issue).parameters.values()
    parameters = [one for one in given if one.kind is not one.KEYWORD_ONLY]  # those are for other rooms
    if call.value is None:
        function = _plain(call, parameters)
    else:
        parameters.pop()  # the future
        function = _answered(call, parameters)
    guest = inspect.Parameter("guest", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = inspect.Signature([guest, *parameters])  # type: ignore[attr-defined]
    return function


def _plain(call: Call, parameters: list[inspect.Parameter]) -> Function:
    name, issue, weigh = call.name, call.issue, weigher(parameters[1:])
    kinds = _handles_among(parameters[1:])

    def function(guest: Guest, queue: int, *arguments: Any) -> Any:
        space = guest.space(queue, name)
        if kinds:
            arguments = _resolve(guest, arguments, kinds)
        size = weigh(arguments)
        if size:
            guest.pending.check(size)
        value = issue(space, queue, *arguments)
        if size:
            guest.pending.issued(space, size)
        return value

    return function


def _answered(call: Call, parameters: list[inspect.Parameter]) -> Function:
    """The function of a call with a future: issues it, or leaves no future behind."""
    name, issue = call.name, call.issue
    weigh, weigh_result = weigher(parameters[1:]), RESULT_BYTES.get(call.value or Done)
    kinds = _handles_among(parameters[1:])
    begin = _begin_run if call.value is Run else None

    def function(guest: Guest, queue: int, *arguments: Any) -> int:
        space = guest.space(queue, name)
        if kinds:
            arguments = _resolve(guest, arguments, kinds)
        size = weigh(arguments)
        result_size = weigh_result(*arguments) if weigh_result else 0
        if size or result_size:
            guest.pending.check(size + result_size)
        future = guest.futures.new(result_size)
        try:
            issue(space, queue, *arguments, future)
        except BaseException:
            guest.futures.forget(future)
            raise
        if begin is not None:
            begin(guest, space, future, arguments)
        if size:
            guest.pending.issued(space, size)
        return future

    return function


def _begin_run(guest: Guest, space: AddressSpace, future: int, arguments: tuple[Any, ...]) -> None:
    """The future is that of a run; its stop tokens are the argument before the options."""
    run = RunBuffer(arguments[-2], lambda: decode.cancel(space, future))
    guest.futures.begin_run(future, run)


def _handles_among(parameters: Sequence[inspect.Parameter]) -> dict[int, type[object]]:
    """What the handles among the parameters stand for, by their places."""
    return {place: HANDLES[one.annotation] for place, one in enumerate(parameters) if one.annotation in HANDLES}


def _resolve(guest: Guest, arguments: tuple[Any, ...], kinds: dict[int, type[object]]) -> tuple[Any, ...]:
    """What the handles among the arguments stand for."""
    resolved = list(arguments)
    for place, kind in kinds.items():
        resolved[place] = guest.handle(resolved[place], kind)
    return tuple(resolved)
