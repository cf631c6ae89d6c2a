"""Futures of the host as awaitable objects."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from inferlet_sdk import bindings
from inferlet_sdk.errors import Cancelled, PieError, call, from_host
from inferlet_sdk.event_loop import HostEventLoop, loop_with_others, wait_for

T = TypeVar("T")

REFERENCE_BIT = 0x8000_0000
"""A token with this bit set is a token reference (see input-text.wit)."""


class HostFuture(Generic[T]):
    """The result of a call that has been issued. `await` it, or call `result()` in a program without asyncio.

    You may await it several times; the SDK takes the value from the host once. A failed call raises its `PieError`.
    """

    __slots__ = ("_error", "_finish", "_taken", "_value", "number")

    def __init__(self, number: int, finish: Callable[[int], T]) -> None:
        """`finish` waits for the future of this number and takes its value: an `await-*` function of the host."""
        self.number: int = number
        self._finish = finish
        self._taken = False
        self._value: T | None = None
        self._error: PieError | None = None

    def __await__(self) -> Generator[Any, None, T]:
        if not self._taken:
            loop = loop_with_others()
            if loop is not None:
                yield from self._until_done(loop)
        return self._result()

    def _until_done(self, loop: HostEventLoop) -> Generator[Any, None, None]:
        try:
            yield from loop.host_future(self.number)
        except BaseException:
            self.cancel()
            raise

    def result(self) -> T:
        """The value; suspends the guest until it is known."""
        return self._result()

    def cancel(self) -> None:
        """Gives up the future; the call itself still takes effect. Does nothing if it is taken or cancelled already."""
        if self._taken:
            return
        self._taken, self._error = True, Cancelled("the future was cancelled")
        call(bindings.core.cancel, self.number)

    def _result(self) -> T:
        if not self._taken:
            self._taken = True
            try:
                self._value = self._finish(self.number)
            except bindings.HostError as error:
                failure = from_host(error)
                if not isinstance(failure, PieError):
                    raise
                self._error = failure
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


def await_done(future: int) -> None:
    """Waits for a future that has nothing to tell."""
    wait_for([future])
    bindings.core.await_number(future)


class SampledToken(HostFuture[T]):
    """What a token that is being sampled gives."""

    __slots__ = ()

    @property
    def reference(self) -> int:
        """The number that stands for this token in a token list."""
        return REFERENCE_BIT | self.number


class TokenFuture(SampledToken[int]):
    """A token that is being sampled. `embed_txt` accepts it as a token before its value is known."""

    __slots__ = ()
