"""For what an inferlet waits: its futures, what goes on behind them, and the call in which its guest is suspended.

The guest is suspended in one call at most. It waits there for futures, for a time, or for work on another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...calls.scores import Scores
from ...errors import CallError, InvalidState
from ...sandbox.fibers import SUSPEND, Instance, Suspend
from ...services.aside import Job
from ...texts import cut
from ..futures import FutureTable
from ..runs import Watch

MOST_NAMED, MOST_BYTES = 3, 200
"""A list tells so many different things that an inferlet waits for, each in so many bytes."""

THE_MODEL, A_TIME, A_JOB = "the model", "a time to pass", "work that the server does for it"

RunAside = Callable[[Callable[[], Any], Callable[[], None]], Job]
"""Calls the first function on another thread, then the second one on this thread."""


class _ForFutures(NamedTuple):
    """The guest waits until one of these futures is done; its call then returns `answer(done futures)`. `asked`:
    somebody asks where the program stands, and the call returns with none."""

    futures: list[int]
    members: Collection[int]
    answer: Callable[[list[int]], Any]
    asked: bool = False


class _Sleep(NamedTuple):
    """The guest waits for a time; its call then returns `value`."""

    timer: asyncio.TimerHandle
    value: Any


class Waits:
    """What one inferlet waits for. It calls `wake` when the inferlet can run. `charge` hears of processor time that
    others have spent for it."""

    __slots__ = ("_call", "_charge", "_run_aside", "_under_way", "futures", "wake")

    def __init__(
        self,
        most_futures: int,
        wake: Callable[[], None],
        run_aside: RunAside,
        charge: Callable[[float], None],
    ) -> None:
        self.futures = FutureTable(most_futures)
        self.wake = wake
        self._run_aside = run_aside
        self._charge = charge
        self._under_way: dict[int, tuple[Callable[[], None], str]] = {}  # behind futures: what ends it; its name
        self._call: _ForFutures | _Sleep | Job | None = None  # in which the guest is suspended

    # ---- futures ----

    def resolve(self, future: int, value: Any) -> None:
        """Gives a future its value, and wakes the inferlet if its guest waits for this future."""
        if self.futures.resolve(future, value):
            self._is_done(future)

    def _is_done(self, future: int) -> None:
        if isinstance(self._call, _ForFutures) and future in self._call.members:
            self.wake()

    @contextmanager
    def issuing(self, size: int = 0) -> Iterator[int]:
        """A new future, as `FutureTable.new` gives it. It is forgotten if what it stands for is refused."""
        future = self.futures.new(size)
        try:
            yield future
        except BaseException:
            self._under_way.pop(future, None)
            self.futures.forget(future)
            raise

    def begin(self, future: int, stop: Callable[[], None], what: str) -> None:
        """Something goes on behind a pending future until `conclude`. `stop` ends it, if the future is cancelled or
        the inferlet ends before. `what` the inferlet waits for then: a noun with its article."""
        self._under_way[future] = stop, what

    def conclude(self, future: int, value: Any, size: int = 0) -> None:
        """What went on behind a future has come to this value, or to a CallError. `size`: its bytes, if that is worth
        counting."""
        self._under_way.pop(future, None)
        self.futures.count(future, size)
        self.resolve(future, value)

    def withdraw(self, future: int, error: CallError) -> None:
        """A future that was done gets an error in place of its value."""
        self.futures.replace(future, error)

    def resolve_later(self, future: int, value: Any, deadline_ns: int) -> None:
        """Gives a future its value at `deadline_ns` of the monotonic clock."""
        timer = _call_at(deadline_ns, lambda: self.conclude(future, value))
        self.begin(future, timer.cancel, A_TIME)

    def cancel(self, future: int) -> None:
        """Cancels a future, and ends what goes on behind it. A value with `not_taken` hears that nobody takes it: the
        next receiver gets a message."""
        value = self.futures.cancel(future)
        if found := self._under_way.pop(future, None):
            stop, _ = found
            stop()
        elif (not_taken := getattr(value, "not_taken", None)) is not None:
            not_taken()

    # ---- decode runs ----

    def advance_run(self, future: int, tokens: Sequence[int], over: bool, scores: Sequence[Scores] = ()) -> None:
        """Tokens of a decode run arrived; `over`: and it has ended. One that fails is resolved with its error.
        `scores`: those of each token, if the run asked for them."""
        run = self.futures.find_run(future)
        if run is not None and run.advance(tokens, over, scores):
            self._settle_run(future)

    def watch_run(self, future: int, watch: Watch) -> None:
        """The text of a run is followed from now on. Raises NotFound, InvalidArgument, InvalidState."""
        run = self.futures.run(future)
        if run.is_watched:
            raise InvalidState(f"decode run {future} is watched already: its tokens come at its end")
        watch.listen(lambda: self._settle_run(future))
        run.watch(watch)
        self._settle_run(future)

    def _settle_run(self, future: int) -> None:
        if self.futures.settle_run(future):
            self._is_done(future)

    # ---- the call in which the guest is suspended ----

    def await_futures(self, futures: list[int], answer: Callable[[list[int]], Any] = list) -> None:
        """Suspends the guest until one of these pending futures is done. Its call then returns `answer(done futures)`,
        or fails with the error that this raises."""
        members = futures if len(futures) <= 8 else frozenset(futures)
        self._call = _ForFutures(futures, members, answer)

    def sleep_until(self, deadline_ns: int, value: Any) -> None:
        """Suspends the guest until `deadline_ns` of the monotonic clock; its call then returns `value`."""
        self._call = _Sleep(_call_at(deadline_ns, self.wake), value)

    def run_aside(self, work: Callable[[], Any]) -> Suspend:
        """Suspends the guest until `work` has been called on another thread. Its call then returns what `work` returns,
        or fails with the CallError that it raises. For host functions that may take more than about a millisecond.

        `work` should let go of the GIL, do its work on the thread on which it is called (the processor time of that is
        charged to the inferlet), and be bounded: it cannot be interrupted. It may use what it was given and what is
        the guest's alone, since that is suspended. If the inferlet ends meanwhile, the value is dropped."""
        self._call = self._run_aside(work, self.wake)
        return SUSPEND

    def answer(self, instance: Instance) -> None:
        """Answers the call in which the guest is suspended, if what it waits for is there."""
        call = self._call
        if isinstance(call, _ForFutures):
            done = self.futures.done(call.futures)
            if done or call.asked:
                self._call = None
                instance.answer(call.answer, done)
        elif isinstance(call, _Sleep):
            self._call = None
            instance.resume(call.value)
        elif call is not None and call.done:
            self._call = None
            self._charge(call.seconds)
            instance.answer(Job.take, call)

    # ---- for those who ask ----

    def what(self) -> str:
        """What the guest waits for; "": it computes, or is about to."""
        call = self._call
        if isinstance(call, _ForFutures):
            named = {self._under_way[each][1] if each in self._under_way else THE_MODEL: None for each in call.futures}
            shown = [cut(each, MOST_BYTES) for each in named][:MOST_NAMED]
            return " or ".join([*shown, f"{len(named) - MOST_NAMED} others"] if len(named) > MOST_NAMED else shown)
        return "" if call is None else A_TIME if isinstance(call, _Sleep) else A_JOB

    def ask(self) -> None:
        """Lets `wait` return no future to the guest, which then says where it stands. A call that waits for one future
        goes on."""
        if isinstance(self._call, _ForFutures) and self._call.answer is list:
            self._call = self._call._replace(asked=True)
            self.wake()

    def end(self) -> None:
        """Nothing comes back to an inferlet that has ended, and nothing here leads back to it."""
        if isinstance(self._call, _Sleep):
            self._call.timer.cancel()
        elif isinstance(self._call, Job):
            self._call.cancel()
        self._call = None
        for stop, _ in self._under_way.values():
            stop()
        self._under_way.clear()
        self.futures.end()
        self.wake = _wake_nobody


def _wake_nobody() -> None:
    """The inferlet has ended."""


def _call_at(deadline_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
    """Calls back at a time of the monotonic clock."""
    return asyncio.get_running_loop().call_later(max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9), callback)
