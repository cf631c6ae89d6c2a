"""One running inferlet, on its host."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..calls.scores import Scores
from ..config import InferletLimits
from ..errors import CallError, InvalidState, QuotaExceeded, WorkerError
from ..sandbox.fibers import SUSPEND, Instance, Suspend
from ..services.aside import Aside, Job, Share
from ..services.http.exchange import Head
from ..services.timers import Timer, Timers
from ..tenants.tenant import DEFAULT_STANDING, Standing
from ..texts import byte_size, cut_middle
from .blobs import BlobTable, KeptBlob, LoadedImage
from .events import Ended
from .futures import FutureTable
from .lifecycle import Status, check_transition
from .mailbox import NO_BLOBS, Received, Sender
from .processor_time import ProcessorTime
from .relations.children import Child, Kin, Outside, ToParent
from .relations.mail import Letter, Mailbox
from .runs import Watch

logger = logging.getLogger(__name__)

MOST_IN_BACKGROUND = 64
"""Calls of one inferlet that are answered from another thread and wait."""


class Holdings(Protocol):
    """The resources that an inferlet holds at models."""

    def usage(self) -> tuple[int, int]:
        """Numbers of pages and embeds."""

    def release(self) -> None:
        """Gives everything back. Idempotent."""


class NoHoldings:
    """The holdings of an inferlet that has no instance yet."""

    def usage(self) -> tuple[int, int]:
        return 0, 0

    def release(self) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class Launched:
    """What is to run. `age`: seconds since it was asked for. `child`: as which its parent has asked for it, if it has
    one."""

    number: int
    program: str  # hash
    name: str  # of the program
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    age: float = 0.0
    standing: Standing = DEFAULT_STANDING
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    parent: Inferlet | None = None
    child: Child | None = None


class Inferlet:
    """One running inferlet. It owns all of its state and knows no other inferlet but its family."""

    def __init__(
        self,
        launched: Launched,
        limits: InferletLimits,
        wake: Callable[[Inferlet], None],
        outside: Outside,
        timers: Timers,
        aside: Aside,
    ) -> None:
        """The inferlet calls `wake` when it can run."""
        self.number = number = launched.number
        self.id = f"i{number}"
        self.program = launched.program
        self.arguments = list(launched.arguments)
        self.standing = launched.standing
        own = {"inferlet": self.id, "program": self.program, "user": self.standing.tenant.name}
        parent, child = launched.parent, launched.child
        if parent is not None and child is not None:
            own["parent"] = parent.id
            limits, outside = child.limits, ToParent(child, outside)
        self.parent = parent
        self._child = child
        self.kin: Kin = Kin(self, limits, parent.kin if parent else None)
        self.environment = {**launched.environment, **own}
        self.limits = limits
        self.status = Status.CREATED
        self.started = time.monotonic() - launched.age
        self.result: str | None = None
        budget = parent.processor_time if parent else None
        self.processor_time: ProcessorTime = ProcessorTime(limits.cpu_seconds, limits.cpu_refill, budget)
        self.memory_bytes = 0  # by which the process grew in its turns
        self.last_activity = time.monotonic()
        self.instance: Instance
        self.holdings: Holdings = NoHoldings()
        self.futures = FutureTable(limits.max_futures)
        self.blobs = BlobTable(limits.max_blob_bytes, launched.blobs)
        self._wake = wake
        self._timers = timers
        self._aside = aside
        self._aside_share = Share()
        self._job: Job | None = None
        self._background: deque[tuple[int, Job | Callable[[], Any]]] = deque()  # the first one is a job
        self._outside = outside
        self._mailbox = Mailbox(self, self._received)
        self.sender = Sender(self.id, limits, lambda event: outside.says(number, event))
        self._under_way: dict[int, Callable[[], None]] = {}  # what ends the work behind pending futures
        self._sleep_timer: Timer | None = None
        self._sleep_value: Any = None
        self._awaited: list[int] | None = None
        self._awaited_set: Collection[int] = ()
        self._answer: Callable[[list[int]], Any] = list

    # ---- for the client ----

    def post(self, text: str, sender: str = "", blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """A message of its client, or of its parent."""
        self._mailbox.put(text, sender, blobs)

    def took(self, size: int) -> None:
        """Its parent has taken so many bytes of its messages, since its beginning."""
        self.sender.room(size, True)

    # ---- for host functions ----

    def put_message(self, text: str, gone: Any = None) -> int | None:
        """Sends a message. If its client is slow, returns a future that gets the value `gone` when there is room for
        more; else None. Raises QuotaExceeded, and sends nothing, if too much waits already."""
        size = self._check_size(text)
        if self.sender.has_room(size):
            self.sender.send(text)
            return None
        future = self.futures.new()
        try:
            self.sender.send(text)
        except QuotaExceeded:
            self.futures.forget(future)
            raise
        self.sender.when_room(lambda: self.resolve(future, gone))
        return future

    def put_result(self, text: str) -> None:
        self._check_size(text)
        self.result = text

    def put_log(self, text: str) -> None:
        self.sender.log("log", text)

    def write_output(self, stream: str, data: bytes) -> None:
        self.sender.write(stream, data)

    def _check_size(self, text: str) -> int:
        size, limit = byte_size(text), self.limits.max_message_bytes
        if size > limit:
            raise QuotaExceeded(f"{size} bytes are more than a message may have ({limit}): send it in pieces")
        return size

    def receive(self) -> int:
        """A future for the next message; raises QuotaExceeded."""
        future = self.futures.new()
        self._mailbox.receive(future)
        return future

    def _received(self, message: Received, sign: int) -> None:
        if message.sender and self._child is not None:
            self._child.arrived(sign * message.size)
        else:
            self._outside.received(self.number, sign * message.size, sign * message.blob_bytes)

    def cancel(self, future: int) -> None:
        """Cancels a future, and ends what goes on behind it. What it holds is given back: the next receiver gets a
        message."""
        value = self.futures.cancel(future)
        if stop := self._under_way.pop(future, None):
            stop()
        elif isinstance(value, Letter | Head | LoadedImage | KeptBlob):
            value.not_taken()

    # ---- waiting ----

    def wake(self) -> None:
        """It can run: its instance, which is no component, has something to do."""
        self._wake(self)

    def resolve(self, future: int, value: Any) -> None:
        """Gives a future its value, and wakes the inferlet if it waits for this future."""
        if self.futures.resolve(future, value) and self._awaited is not None and future in self._awaited_set:
            self._wake(self)

    def advance_run(self, future: int, tokens: Sequence[int], over: bool, scores: Sequence[Scores] = ()) -> None:
        """Tokens of a decode run arrived; `over`: and it has ended. One that fails is resolved with its error.
        `scores`: of each token, if the run asked for them."""
        run = self.futures.find_run(future)
        if run is not None:
            run.advance(tokens, over, scores)
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
        if self.futures.settle_run(future) and self._awaited is not None and future in self._awaited_set:
            self._wake(self)

    def begin(self, future: int, stop: Callable[[], None]) -> None:
        """Something goes on behind a pending future until `conclude`. `stop` ends it, if the future is cancelled or
        the inferlet ends before."""
        self._under_way[future] = stop

    def conclude(self, future: int, value: Any) -> None:
        """What went on behind a future has come to this value, or to a CallError."""
        self._under_way.pop(future, None)
        self.resolve(future, value)

    def resolve_later(self, future: int, value: Any, deadline_ns: int) -> None:
        """Gives a future its value at `deadline_ns` of the monotonic clock."""
        timer = self._timers.call_at(deadline_ns, lambda: self.conclude(future, value))
        self.begin(future, timer.cancel)

    def await_futures(self, futures: list[int], answer: Callable[[list[int]], Any] = list) -> None:
        """Suspends the guest until one of these pending futures is done. Its call then returns `answer(done futures)`,
        or fails with the error that this raises."""
        self._awaited = futures
        self._awaited_set = futures if len(futures) <= 8 else frozenset(futures)
        self._answer = answer

    def sleep_until(self, deadline_ns: int, value: Any) -> None:
        """Suspends the guest until `deadline_ns` of the monotonic clock; its call then returns `value`."""
        self._sleep_value = value
        self._sleep_timer = self._timers.call_at(deadline_ns, lambda: self._wake(self))

    def run_aside(self, work: Callable[[], Any]) -> Suspend:
        """Suspends the guest until `work` has been called on another thread. Its call then returns what `work` returns,
        or fails with the CallError that it raises. For host functions that may take more than about a millisecond.

        `work` should let go of the GIL, do its work on the thread on which it is called (the processor time of that is
        charged to the inferlet), and be bounded: it cannot be interrupted. It may use what it was given and what is
        the guest's alone, since that is suspended. If the inferlet ends meanwhile, the value is dropped."""
        self._job = self._aside.run(self._aside_share, work, lambda: self._wake(self))
        return SUSPEND

    def resolve_aside(self, future: int, work: Callable[[], Any]) -> None:
        """Gives a future what `work` returns, or the CallError that it raises. As `run_aside`, but the guest goes on,
        so `work` must not use what is the guest's; one after the other. Raises QuotaExceeded if very many wait."""
        if len(self._background) >= MOST_IN_BACKGROUND:
            raise QuotaExceeded(f"{MOST_IN_BACKGROUND} calls that take long are under way: wait for some first")
        self._background.append((future, work))
        if len(self._background) == 1:
            self._begin_background()

    def _begin_background(self) -> None:
        future, work = self._background[0]
        assert not isinstance(work, Job)
        self._background[0] = future, self._aside.run(self._aside_share, work, self._background_done)

    def _background_done(self) -> None:
        future, job = self._background.popleft()
        assert isinstance(job, Job)
        self.processor_time.charge(job.seconds)
        try:
            value = job.take()
        except CallError as error:
            value = error
        except Exception as error:
            logger.exception("work beside the loop of inferlet %s failed", self.id)
            value = WorkerError(f"the server could not do it: {type(error).__name__}")
        self.resolve(future, value)
        if self._background:
            self._begin_background()

    def before_step(self) -> None:
        """Answers the call for which the guest waits, if its result is there."""
        if self._job is not None:
            self._answer_with(self._job)
        elif self._awaited is not None:
            done = self.futures.done(self._awaited)
            if done:
                self._awaited = None
                self.instance.answer(self._answer, done)
        elif self._sleep_timer is not None:
            self._sleep_timer = None
            self.instance.resume(self._sleep_value)

    def _answer_with(self, job: Job) -> None:
        if job.done:
            self._job = None
            self.processor_time.charge(job.seconds)
            self.instance.answer(Job.take, job)

    # ---- life ----

    def change(self, status: Status) -> None:
        check_transition(self.status, status)
        self.status = status
        if status is Status.RUNNING:
            self._outside.runs(self.number)

    def finish(self, status: Status, error: str | None) -> None:
        """Says the end to the client. The caller has released the inferlet's holdings."""
        self.change(status)
        self._drop_what_only_the_guest_needed()
        if error is not None:
            error = cut_middle(error, self.limits.max_message_bytes)
        result = self.result if status is Status.FINISHED else None
        self.sender.close()
        self._outside.ended(self.number, Ended(status.value, result, error, inferlet=self.id), self.processor_time.used)

    def _drop_what_only_the_guest_needed(self) -> None:
        """Nothing comes back to an inferlet that has ended."""
        if self._sleep_timer is not None:
            self._sleep_timer.cancel()
        for stop in self._under_way.values():
            stop()
        self._under_way.clear()
        if self._job is not None:
            self._job.cancel()
            self._job = None
        for _, job in self._background:
            if isinstance(job, Job):
                job.cancel()
        self._background.clear()
        self.blobs = BlobTable(0, {})
        self.futures = FutureTable(0)
