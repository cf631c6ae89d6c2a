"""One running inferlet: its side for the host functions, and its side for the client."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import InferletLimits
from ..errors import Conflict, InvalidState, QuotaExceeded
from ..programs.store import Program
from ..sandbox.fibers import SUSPEND, Instance, Suspend
from ..services.aside import Aside, Job, Share
from ..services.timers import Timer, Timers
from ..tenants.tenant import DEFAULT_STANDING, Standing
from ..texts import byte_size, cut_middle
from .events import Ended, LogLine
from .futures import FutureTable
from .lifecycle import ENDINGS, Status, check_transition
from .mailbox import Inbox, Listener, Outbox, Received
from .processor_time import ProcessorTime
from .runs import Watch


@dataclass(frozen=True)
class InferletInfo:
    """The state of an inferlet, for clients. Times are seconds since the epoch."""

    id: str
    program: str
    program_name: str
    status: str
    created: float
    ended: float | None
    result: str | None
    error: str | None
    cpu_seconds: float
    pages: int
    embeds: int


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


class Inferlet:
    """One running inferlet. It owns all of its state and knows no other inferlet."""

    def __init__(
        self,
        number: int,
        program: Program,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        limits: InferletLimits,
        wake: Callable[[Inferlet], None],
        timers: Timers,
        aside: Aside,
        standing: Standing = DEFAULT_STANDING,
    ) -> None:
        """The inferlet calls `wake` when it can run."""
        self.number = number
        self.id = f"i{number}"
        self.program = program
        self.arguments = list(arguments)
        self.environment = {**environment, "inferlet": self.id, "program": program.hash, "user": standing.tenant.name}
        self.limits = limits
        self.status = Status.CREATED
        self.created = time.time()
        self.started = time.monotonic()  # unlike `created`, it survives a step of the clock
        self.standing = standing
        self.ended: float | None = None
        self.error: str | None = None
        self.result: str | None = None
        self.kept_bytes = 0  # size of log, messages and result, once it has ended
        self.processor_time = ProcessorTime(limits.cpu_seconds, limits.cpu_refill)
        self.memory_bytes = 0  # by which the process grew in its turns
        self.last_activity = time.monotonic()
        self.instance: Instance
        self.holdings: Holdings = NoHoldings()
        self.futures = FutureTable(limits.max_futures)
        self._wake = wake
        self._timers = timers
        self._aside = aside
        self._aside_share = Share()
        self._job: Job | None = None
        self._inbox = Inbox()
        self.outbox = Outbox(self.id, limits)
        self._receivers: OrderedDict[int, None] = OrderedDict()
        self._pending_timers: dict[int, Timer] = {}
        self._sleep_timer: Timer | None = None
        self._sleep_value: Any = None
        self._awaited: list[int] | None = None
        self._awaited_set: Collection[int] = ()
        self._answer: Callable[[list[int]], Any] = list

    # ---- for the client ----

    def info(self) -> InferletInfo:
        pages, embeds = self.holdings.usage()
        return InferletInfo(
            id=self.id,
            program=self.program.hash,
            program_name=self.program.name,
            status=self.status,
            created=self.created,
            ended=self.ended,
            result=self.result,
            error=self.error,
            cpu_seconds=round(self.processor_time.used, 6),
            pages=pages,
            embeds=embeds,
        )

    def send(self, text: str) -> None:
        """Sends a message to the inferlet; raises Conflict if it has ended, Overloaded if it does not keep up."""
        if self.status in ENDINGS:
            raise Conflict(f"inferlet {self.id} has ended ({self.status})")
        self._inbox.put(text)
        self._deliver()

    def logs(self) -> tuple[LogLine, ...]:
        return self.outbox.logs()

    def attach(self, listener: Listener) -> None:
        """Gives a listener, which must not block, all events: first those that nobody has taken."""
        self.outbox.push_to(listener)

    # ---- for host functions ----

    def put_message(self, text: str, gone: Any = None) -> int | None:
        """Sends a message. If its client is slow, returns a future that gets the value `gone` when there is room for
        more; else None. Raises QuotaExceeded, and sends nothing, if too much waits already."""
        size = self._check_size(text)
        if self.outbox.has_room(size):
            self.outbox.send(text)
            return None
        future = self.futures.new()
        try:
            self.outbox.send(text)
        except QuotaExceeded:
            self.futures.forget(future)
            raise
        self.outbox.when_room(lambda: self.resolve(future, gone))
        return future

    def put_result(self, text: str) -> None:
        self._check_size(text)
        self.result = text

    def put_log(self, text: str) -> None:
        self.outbox.log("log", text)

    def write_output(self, stream: str, data: bytes) -> None:
        self.outbox.write(stream, data)

    def _check_size(self, text: str) -> int:
        size, limit = byte_size(text), self.limits.max_message_bytes
        if size > limit:
            raise QuotaExceeded(f"{size} bytes are more than a message may have ({limit}): send it in pieces")
        return size

    def receive(self) -> int:
        """A future for the next message; raises QuotaExceeded."""
        future = self.futures.new()
        self._receivers[future] = None
        self._deliver()
        return future

    def cancel(self, future: int) -> None:
        """Cancels a future. If it holds a message, the next receiver gets that."""
        value = self.futures.cancel(future)
        self._receivers.pop(future, None)
        if timer := self._pending_timers.pop(future, None):
            timer.cancel()
        if isinstance(value, Received):
            self._inbox.put_back(value)
            self._deliver()

    def _deliver(self) -> None:
        while self._receivers:
            message = self._inbox.try_get()
            if message is None:
                return
            future, _ = self._receivers.popitem(last=False)
            self.resolve(future, message)

    # ---- waiting ----

    def resolve(self, future: int, value: Any) -> None:
        """Gives a future its value, and wakes the inferlet if it waits for this future."""
        if self.futures.resolve(future, value) and self._awaited is not None and future in self._awaited_set:
            self._wake(self)

    def advance_run(self, future: int, tokens: Sequence[int], over: bool) -> None:
        """Tokens of a decode run arrived; `over`: and it has ended. One that fails is resolved with its error."""
        run = self.futures.find_run(future)
        if run is not None:
            run.advance(tokens, over)
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

    def resolve_later(self, future: int, value: Any, deadline_ns: int) -> None:
        """Gives a future its value at `deadline_ns` of the monotonic clock."""

        def resolve() -> None:
            del self._pending_timers[future]
            self.resolve(future, value)

        self._pending_timers[future] = self._timers.call_at(deadline_ns, resolve)

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

    def finish(self, status: Status, error: str | None) -> None:
        """Records the end and sends it to the client. The caller has released the inferlet's holdings."""
        self.change(status)
        self._drop_what_only_the_guest_needed()
        self.ended = time.time()
        self.error = error = cut_middle(error, self.limits.max_message_bytes) if error is not None else None
        if status is not Status.FINISHED:
            self.result = None
        self.outbox.end(Ended(status.value, self.result, error, inferlet=self.id))
        self.kept_bytes = self.outbox.kept_bytes + byte_size(self.result or "") + byte_size(error or "")

    def _drop_what_only_the_guest_needed(self) -> None:
        """Clients may ask about the inferlet for a long time: this keeps only what they can ask for."""
        for timer in (*self._pending_timers.values(), *([self._sleep_timer] if self._sleep_timer else [])):
            timer.cancel()
        self._pending_timers.clear()
        self.arguments, self.environment = [], {}
        if self._job is not None:
            self._job.cancel()
            self._job = None
        self._receivers.clear()
        self._inbox = Inbox()
        self.futures = FutureTable(0)
        self._answer = list
