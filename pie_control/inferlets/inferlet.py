"""One running inferlet, as its host functions and its client see it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..config import InferletLimits
from ..errors import Conflict, QuotaExceeded
from ..programs.languages.python_source import SourceText
from ..programs.store import Program
from ..sandbox.fibers import Instance
from ..sandbox.wasi import WasiState
from .events import Ended, LogLine
from .futures import FutureTable
from .lifecycle import ENDINGS, Status, check_transition
from .mailbox import Inbox, Listener, Outbox, Received, byte_size

if TYPE_CHECKING:  # what host_api keeps here for an inferlet; nothing of it is used here
    from ..engine.model import Model
    from ..host_api.handles import Queue, Session

MAX_HANDLES = 1024
"""Samplers and detokenizers of one inferlet."""


@dataclass(frozen=True)
class InferletInfo:
    """What can be told of an inferlet. Times are seconds since the epoch."""

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


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It does not come."""


class Wakes(Protocol):
    """The runner, as an inferlet needs it."""

    def ready(self, inferlet: Inferlet) -> None:
        """The inferlet can go on."""

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> Timer:
        """Calls back at a time of the monotonic clock."""


class Inferlet:
    """One running inferlet. Everything in it is its own; nothing here knows another inferlet."""

    def __init__(
        self,
        number: int,
        program: Program,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        limits: InferletLimits,
        runner: Wakes,
    ) -> None:
        self.number = number
        self.id = f"i{number}"
        self.program = program
        self.arguments = list(arguments)
        self.environment = {**environment, "inferlet": self.id, "program": program.hash}
        self.limits = limits
        self.status = Status.CREATED
        self.created = time.time()
        self.ended: float | None = None
        self.error: str | None = None
        self.result: str | None = None
        self.kept_bytes = 0  # of an ended one: what its log, messages and result take
        self.cpu_seconds = 0.0
        self.last_activity = time.monotonic()
        self.instance: Instance
        self.source: SourceText | None = None  # of a Python program
        self.wasi = WasiState()
        self.futures = FutureTable(limits.max_futures)
        self.models: Mapping[str, Model] = {}
        self.sessions: dict[str, Session] = {}
        self.handles: dict[int, object] = {}
        self.queues: dict[int, Queue] = {}
        self.next_queue = 0
        self._next_handle = 1
        self._runner = runner
        self._inbox = Inbox()
        self._outbox = Outbox(limits)
        self._receivers: OrderedDict[int, None] = OrderedDict()
        self._timers: dict[int, Timer] = {}
        self._sleep_timer: Timer | None = None
        self._awaited: list[int] | None = None
        self._awaited_set: Collection[int] = ()
        self._sleep_value: Any = None

    # ---- for the client ----

    def info(self) -> InferletInfo:
        held = [session.holdings() for session in self.sessions.values()]
        return InferletInfo(
            id=self.id,
            program=self.program.hash,
            program_name=self.program.name,
            status=self.status,
            created=self.created,
            ended=self.ended,
            result=self.result,
            error=self.error,
            cpu_seconds=round(self.cpu_seconds, 6),
            pages=sum(pages for pages, _ in held),
            embeds=sum(embeds for _, embeds in held),
        )

    def send(self, text: str) -> None:
        """A message to the inferlet; raises Conflict if it has ended, Overloaded if it does not keep up."""
        if self.status in ENDINGS:
            raise Conflict(f"inferlet {self.id} has ended ({self.status})")
        self._inbox.put(text)
        self._deliver()

    def logs(self) -> tuple[LogLine, ...]:
        return self._outbox.logs()

    def attach(self, listener: Listener) -> None:
        """Sends events to a listener from now on, those that nobody has heard first. It must not block."""
        self._outbox.attach(listener)

    def detach(self) -> None:
        """Keeps events again, within bounds."""
        self._outbox.detach()

    # ---- for host functions ----

    def put_message(self, text: str) -> None:
        self._check_size(text)
        self._outbox.send(text)

    def put_result(self, text: str) -> None:
        self._check_size(text)
        self.result = text

    def put_log(self, text: str) -> None:
        self._outbox.log("log", text)

    def write_output(self, stream: str, data: bytes) -> None:
        self._outbox.write(stream, data)

    def _check_size(self, text: str) -> None:
        size, limit = byte_size(text), self.limits.max_message_bytes
        if size > limit:
            raise QuotaExceeded(f"{size} bytes are more than a message may have ({limit}): send it in pieces")

    def receive(self) -> int:
        """A future of the next message."""
        future = self.futures.new()
        self._receivers[future] = None
        self._deliver()
        return future

    def cancel(self, future: int) -> None:
        """Forgets a future. A message that it had received goes to the next receiver."""
        value = self.futures.cancel(future)
        self._receivers.pop(future, None)
        if timer := self._timers.pop(future, None):
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

    def add_handle(self, value: object) -> int:
        """Number of a new handle (sampler, detokenizer); raises QuotaExceeded."""
        if len(self.handles) >= MAX_HANDLES:
            raise QuotaExceeded(f"{MAX_HANDLES} samplers and detokenizers exist: destroy some first")
        number = self._next_handle
        self._next_handle += 1
        self.handles[number] = value
        return number

    # ---- waiting ----

    def resolve(self, future: int, value: Any) -> None:
        """Gives a future its value and wakes the inferlet if it waits for it."""
        if self.futures.resolve(future, value) and self._awaited is not None and future in self._awaited_set:
            self._runner.ready(self)

    def resolve_later(self, future: int, value: Any, deadline_ns: int) -> None:
        """Gives a future its value at a time of the monotonic clock."""

        def resolve() -> None:
            del self._timers[future]
            self.resolve(future, value)

        self._timers[future] = self._runner.call_at(deadline_ns, resolve)

    def await_futures(self, futures: list[int]) -> None:
        """The guest suspends until one of these, all pending, is done."""
        self._awaited = futures
        self._awaited_set = futures if len(futures) <= 8 else frozenset(futures)

    def sleep_until(self, deadline_ns: int, value: Any) -> None:
        """The guest suspends until a time of the monotonic clock; its call then returns `value`."""
        self._sleep_value = value
        self._sleep_timer = self._runner.call_at(deadline_ns, lambda: self._runner.ready(self))

    def before_step(self) -> None:
        """Hands a waiting guest what it waited for."""
        if self._awaited is not None:
            done = self.futures.done(self._awaited)
            if done:
                self._awaited = None
                self.instance.resume(done)
        elif self._sleep_timer is not None:
            self._sleep_timer = None
            self.instance.resume(self._sleep_value)

    # ---- life ----

    def change(self, status: Status) -> None:
        check_transition(self.status, status)
        self.status = status

    def finish(self, status: Status, error: str | None) -> None:
        """Records the ending and tells the client. The caller has freed what the inferlet held outside."""
        self.change(status)
        self._drop_what_only_the_guest_needed()
        self.ended = time.time()
        self.error = error
        if status is not Status.FINISHED:
            self.result = None
        self._outbox.end(Ended(status, self.result, error))
        self.kept_bytes = self._outbox.kept_bytes + byte_size(self.result or "") + byte_size(error or "")

    def _drop_what_only_the_guest_needed(self) -> None:
        """The inferlet may be asked about for long: keeps what can be told of it."""
        for timer in (*self._timers.values(), *([self._sleep_timer] if self._sleep_timer else [])):
            timer.cancel()
        self._timers.clear()
        self._receivers.clear()
        self._inbox = Inbox()
        self.futures = FutureTable(0)
        self.handles = {}
        self.wasi = WasiState()
