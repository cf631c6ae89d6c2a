"""An instance that is no component: a program on another thread, whose calls wait for the thread of the event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...errors import CallError, InvalidArgument
from ...sandbox.fibers import SUSPEND, Step
from ...sandbox.functions import MAX_ITEMS, MAX_TEXT_BYTES, HostFunction
from ...texts import byte_size

T = TypeVar("T")

PATIENCE_SECONDS = 0.0005
"""A turn waits so long for the program's next call, so that commands in a row go into one wave."""


class InferletGone(BaseException):
    """Unwinds a program whose inferlet has ended."""


class _Asked(NamedTuple):
    """A call of the program. `function` is None at its end, whose error or None is the only argument."""

    function: HostFunction | None
    arguments: tuple[Any, ...]
    answer: Future[Any]


class NativeInstance:
    """Has what the runner and inferlets need of an `Instance`. `call` and `finish` belong to the program's thread, all
    else to that of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.owner: Any = None
        self.fault: str | None = None
        self.waiting = False
        self._loop = loop
        self._asked: SimpleQueue[_Asked] = SimpleQueue()
        self._current: _Asked | None = None  # for which the program waits
        self._resume: Callable[[Future[Any]], None] | None = None
        self._is_done = False
        self._is_closed = False
        self._error: str | None = None

    # ---- on the program's thread ----

    def call(self, function: HostFunction, *arguments: Any) -> Any:
        """What a host function returns. Raises CallError; InferletGone if the inferlet has ended."""
        given = tuple(list(one) if isinstance(one, list | tuple) else one for one in arguments)
        return self._ask(_Asked(function, given, Future()))

    def finish(self, error: str | None) -> None:
        """The program has ended."""
        self._ask(_Asked(None, (error,), Future()))

    def _ask(self, asked: _Asked) -> Any:
        self._asked.put(asked)
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            raise InferletGone("the server has stopped") from None
        return asked.answer.result()

    # ---- on the event loop's ----

    def _wake(self) -> None:
        if self._is_closed:
            self._refuse_all()
        else:
            self.owner.inferlet.waits.wake()

    def step(self) -> Step:
        """Answers calls until the program computes, waits or ends."""
        if self.waiting:
            if self._resume is not None:
                self._answer(self._resume)
            elif self._asked.empty():
                return Step.WAITING
            else:  # Ctrl-C has ended its wait, and it asks for something else
                self._current, self.waiting = None, False
        seconds = 0.0
        while not self._is_done:
            try:
                asked = self._asked.get(timeout=seconds) if seconds else self._asked.get_nowait()
            except Empty:
                return Step.WAITING
            if self._take(asked):
                return Step.WAITING
            seconds = PATIENCE_SECONDS
        return Step.DONE

    def _take(self, asked: _Asked) -> bool:
        """Calls the function; True if the program has to wait."""
        if asked.function is None:
            self._is_done, self._error = True, asked.arguments[0]
            asked.answer.set_result(None)
            return False
        self._current, self._resume = asked, None
        try:
            check_sizes(asked.function, asked.arguments)
            value = asked.function.call(self.owner, *asked.arguments)
        except CallError as error:
            self._fail(error)
        except Exception as error:
            self._fail(RuntimeError(f"internal error in a host function: {error!r}"))
        else:
            if value is SUSPEND:
                self.waiting = True
                return True
            self._answer(lambda answer: answer.set_result(python_value(value)))
        return False

    def _answer(self, resume: Callable[[Future[Any]], None]) -> None:
        assert self._current is not None, "there is a call to be answered"
        answer, self._current, self._resume, self.waiting = self._current.answer, None, None, False
        resume(answer)

    def _fail(self, error: Exception) -> None:
        self._answer(lambda answer: answer.set_exception(error))

    def resume(self, value: Any) -> None:
        """Gives the call that waits its result; the next step hands it over."""
        self._resume = lambda answer: answer.set_result(python_value(value))

    def answer(self, function: Callable[[T], Any], argument: T) -> None:
        """Resumes with the value that the function returns, or the error that it raises."""
        try:
            self.resume(function(argument))
        except CallError as error:
            self.refuse(error)
        except Exception as error:
            self.end_with(f"internal error in a host function: {error!r}")

    def refuse(self, error: CallError) -> None:
        """Resumes with an error."""
        self._resume = lambda answer: answer.set_exception(error)

    def end_with(self, fault: str) -> None:
        """Resumes with an error that no program expects."""
        self._resume = lambda answer: answer.set_exception(RuntimeError(fault))

    def outcome(self) -> str | None:
        """The error of a program that has ended."""
        return self._error

    def close(self) -> None:
        """The inferlet ends: the next call of the program, or the one for which it waits, raises InferletGone.
        Idempotent."""
        self._is_closed = True
        self._refuse_all()

    def _refuse_all(self) -> None:
        if self._current is not None:
            self._answer(_end)
        while not self._asked.empty():
            _end(self._asked.get_nowait().answer)


def _end(answer: Future[Any]) -> None:
    answer.set_exception(InferletGone("the inferlet has ended"))


def check_sizes(function: HostFunction, arguments: tuple[Any, ...]) -> None:
    """Refuses what the sandbox refuses, for the same lists and texts. Raises InvalidArgument."""
    for place, value in enumerate(arguments):
        if isinstance(value, list | str | bytes):
            size = byte_size(value) if isinstance(value, str) else len(value)
            name = _parameters(function.call)[place]
            bound = function.most.get(name) or (MAX_TEXT_BYTES if isinstance(value, str) else MAX_ITEMS)
            if size > bound:
                what = "bytes" if isinstance(value, str) else "items"
                raise InvalidArgument(f"`{name}` has {size} {what}; one call takes {bound}: pass less at a time")


@functools.cache
def _parameters(call: Callable[..., Any]) -> tuple[str, ...]:
    """Names of what the guest passes."""
    return tuple(inspect.signature(call).parameters)[1:]


def python_value(value: Any) -> Any:
    """A value of a host function in the form that the sandbox gives to Python."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(map(python_value, value))
    return [python_value(one) for one in value] if isinstance(value, list) else value
