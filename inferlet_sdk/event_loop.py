"""An asyncio event loop whose selector is the host.

A CPython guest has no threads, sockets or signals; it can wait only for futures of the host. So this is the standard
library's loop with a selector that suspends the whole guest in `core.wait` until one of these futures is done. One host
future stands for the nearest timer. `asyncio.sleep`, `timeout`, `gather`, `TaskGroup` and `Queue` work unchanged.
While it waits so, somebody may ask where the program stands: `wait_for` writes the places of the tasks to the log.

A short cut keeps plain generation cheap: while the loop has nothing else ready, timed or waiting, a task that waits for
the host suspends the guest immediately (`loop_with_others`), without an asyncio future and a turn of the loop.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

from inferlet_sdk import bindings
from inferlet_sdk.dropped import give_back
from inferlet_sdk.errors import QuotaExceeded, call

T = TypeVar("T")

_TURNS_BEFORE_YIELD = 32
"""The host gets a turn after this many turns of the loop with ready callbacks: tasks that spin on `sleep(0)` must not
keep results from arriving."""


class Deadlock(RuntimeError):
    """Every task waits for another task that also waits."""


class _HostSelector:
    """Waits for futures of the host, as `selectors.DefaultSelector` waits for files."""

    def __init__(self) -> None:
        self.waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._busy_turns = 0

    def select(self, timeout: float | None) -> list[int]:
        """Waits at most `timeout` seconds (None: without limit); returns the numbers of host futures that are done."""
        if timeout is not None:
            return self._select_until(timeout)
        if not self.waiters:
            raise Deadlock
        return self._wait(list(self.waiters))

    def _select_until(self, timeout: float) -> list[int]:
        if timeout <= 0 and not self._yield_is_due():
            return []
        try:
            timer: int = call(bindings.core.sleep, max(0, math.ceil(timeout * 1e9)))
        except QuotaExceeded:  # of futures; the timer is late
            if not self.waiters:
                raise
            return self._wait(list(self.waiters))
        done = self._wait([*self.waiters, timer])
        if timer in done:
            bindings.core.await_number(timer)
            done.remove(timer)
        else:
            bindings.core.cancel(timer)
        return done

    def _yield_is_due(self) -> bool:
        self._busy_turns += 1
        return self._busy_turns % _TURNS_BEFORE_YIELD == 0

    def _wait(self, numbers: list[int]) -> list[int]:
        self._busy_turns = 0
        give_back()
        return wait_for(numbers)

    def close(self) -> None:
        self.waiters.clear()


class HostEventLoop(asyncio.BaseEventLoop):
    """The event loop of a guest."""

    _ready: Any  # of BaseEventLoop
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self._selector = _HostSelector()
        self.set_exception_handler(_print_unhandled)

    def is_alone(self) -> bool:
        """Whether only the running task can make progress."""
        return not self._ready and not self._scheduled and not self._selector.waiters

    async def any_host_future(self, numbers: Sequence[int]) -> None:
        """Waits until one of these host futures is done. Several tasks may wait for the same."""
        future = self.create_future()
        waiters = self._selector.waiters
        for number in numbers:
            waiters.setdefault(number, []).append(future)
        try:
            await future
        finally:
            for number in numbers:
                self._forget(number, future)

    def host_future(self, number: int) -> Generator[Any, None, None]:
        """Waits for one host future, for `yield from` in an `__await__`."""
        future = self.create_future()
        waiters = self._selector.waiters
        if number in waiters:
            waiters[number].append(future)
        else:
            waiters[number] = [future]
        try:
            yield from future
        except BaseException:
            self._forget(number, future)
            raise

    def when_done(self, number: int, call: Callable[[], None]) -> None:
        """Calls back when one host future is done."""
        future = self.create_future()
        future.add_done_callback(lambda _: call())
        self._selector.waiters.setdefault(number, []).append(future)

    def _forget(self, number: int, future: asyncio.Future[None]) -> None:
        waiters = self._selector.waiters.get(number, [])
        if future in waiters:
            waiters.remove(future)
            if not waiters:
                del self._selector.waiters[number]

    def _process_events(self, event_list: list[int]) -> None:
        for number in event_list:
            for future in self._selector.waiters.pop(number, ()):
                if not future.done():
                    future.set_result(None)

    def _write_to_self(self) -> None:
        """Does nothing: there are no other threads to wake the loop."""

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("an inferlet has no threads: call the function directly instead of to_thread or an executor")

    async def getaddrinfo(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError("an inferlet has no sockets: `http_get` and `http_post` of inferlet_sdk ask servers")

    def run_until_complete(self, future: Any) -> Any:
        try:
            return super().run_until_complete(future)
        except Deadlock:
            raise Deadlock(_describe_deadlock(self)) from None

    def finish(self) -> None:
        """Cancels the remaining tasks, lets them clean up, and closes the loop."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        if self._asyncgens:
            self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    _asyncgens: Any  # of BaseEventLoop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on a new loop, as `asyncio.run` does."""
    loop = HostEventLoop()
    try:
        result: T = loop.run_until_complete(main)
        return result
    finally:
        loop.finish()


def loop_with_others() -> HostEventLoop | None:
    """The running loop, if another task can make progress while this one waits: wait with `any_host_future` then. None:
    the next call may suspend the whole guest.
    """
    loop: Any = asyncio._get_running_loop()
    if loop is None or loop.is_alone():
        give_back()
        return None
    return loop  # type: ignore[no-any-return]


async def until_done(number: int) -> None:
    """Waits, unless the call that takes the value may suspend the whole guest."""
    loop = loop_with_others()
    if loop is not None:
        await loop.any_host_future((number,))


async def until_any_done(numbers: Sequence[int]) -> list[int]:
    """Waits until one of the host futures is done; returns the numbers of all done ones. Returns at once if `numbers`
    is empty.
    """
    loop = loop_with_others()
    if numbers and loop is not None:
        await loop.any_host_future(numbers)
    return wait_for(list(numbers))


def wait_for(numbers: Sequence[int]) -> list[int]:
    """Suspends the guest until one of the host futures is done; returns the numbers of all done ones. Returns at once
    if `numbers` is empty. What waits for anything but the model goes through here: it may take long, and whoever asks
    meanwhile finds the places of the tasks in the log.
    """
    while not (done := list(bindings.core.wait(numbers))) and numbers:
        bindings.core.log(bindings.core.LogLevel.INFO, "where its tasks are:\n" + _places(asyncio._get_running_loop()))
    return done


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of this SDK in a program without asyncio. The coroutine never yields; it suspends the guest."""
    if asyncio._get_running_loop() is not None:
        coroutine.close()
        raise RuntimeError("inside `async def` use the asynchronous form: `await ...` or `async for ...`")
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("this operation waits for other tasks: use it in an `async def main`")


def waited_for(coroutine: Coroutine[Any, Any, T]) -> Any:
    """A coroutine of this SDK to be awaited; in a program without asyncio its value, after the wait."""
    return run_blocking(coroutine) if asyncio._get_running_loop() is None else coroutine


def _print_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Prints the traceback of a failed task that nobody awaits to the inferlet's log."""
    from inferlet_sdk.tracebacks.report import format_error

    error = context.get("exception")
    print(context["message"] + ("\n" + format_error(error) if error else ""), file=_stderr())


def _stderr() -> Any:
    import sys

    return sys.stderr


def _describe_deadlock(loop: asyncio.AbstractEventLoop) -> str:
    return "every task waits for another, and no call to the host is under way:\n" + _places(loop)


def _places(loop: asyncio.AbstractEventLoop | None) -> str:
    """A line for each task, with its frames, the outermost first; without a loop, of the program alone."""
    if loop is None:
        return f"  main: {_path(_frames_of_caller())}"
    current = asyncio.current_task(loop)
    lines = (
        f"  {task.get_name()}: {_path(_frames_of_caller() if task is current else _frames(task))}"
        for task in asyncio.all_tasks(loop)
    )
    return "\n".join(sorted(lines))


def _path(frames: list[FrameType]) -> str:
    """The program's own frames, or the innermost if there are none."""
    from inferlet_sdk.tracebacks.report import is_own

    own = [frame for frame in frames if is_own(frame.f_code.co_filename)] or frames[-1:]
    places = (f"{frame.f_code.co_name} (line {frame.f_lineno} of {frame.f_code.co_filename})" for frame in own)
    return ", ".join(places) or "ended"


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Those of a task that is suspended: `Task.get_stack` has the first alone."""
    awaited: Any = task.get_coro()
    found = []
    while awaited is not None:
        found.append(getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return [frame for frame in found if frame is not None]


def _frames_of_caller() -> list[FrameType]:
    """Those of what runs."""
    return [frame for frame, _ in traceback.walk_stack(None)][::-1]


def install() -> None:
    """Makes `asyncio.run` and `asyncio.Runner` of the program use this loop."""
    asyncio.new_event_loop = asyncio.events.new_event_loop = HostEventLoop
