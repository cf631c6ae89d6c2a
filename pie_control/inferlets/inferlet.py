"""One running inferlet, on its host: the parts that it is made of, and how they begin and end together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..config import InferletLimits
from ..sandbox.fibers import Instance
from ..services.aside import Aside, ThreadShare
from ..services.http.trace_context import HEADER
from ..texts import cut_middle
from .blobs import BlobTable
from .events import Ended, Launch, Span
from .lifecycle import InferletLife, Status
from .mailbox import Received, Sender
from .processor_time import ProcessorTime
from .relations.children import Child, Kin, Outside
from .relations.client import ClientMail
from .waiting.background import Background
from .waiting.waits import Waits


class ModelHoldings(Protocol):
    """The resources that an inferlet holds at models."""

    def usage(self) -> tuple[int, int]:
        """Numbers of pages and embeds."""

    @property
    def is_at_work(self) -> bool:
        """Whether a model has something to do for it: commands that wait, or a decode run."""

    def release(self) -> None:
        """Gives everything back. Idempotent."""


class NoHoldings:
    """The holdings of an inferlet that has no instance yet."""

    is_at_work = False

    def usage(self) -> tuple[int, int]:
        return 0, 0

    def release(self) -> None:
        """Does nothing."""


class Inferlet:
    """One running inferlet. It owns all of its state and knows no other inferlet but its family."""

    __slots__ = (
        "_child",
        "_outside",
        "background",
        "blobs",
        "environment",
        "holdings",
        "instance",
        "kin",
        "last_error",
        "launched",
        "life",
        "limits",
        "mail",
        "no_worker",
        "parent",
        "processor_time",
        "waits",
    )

    def __init__(
        self,
        launched: Launch,
        parent: Inferlet | None,
        child: Child | None,
        limits: InferletLimits,
        wake: Callable[[Inferlet], None],
        outside: Outside,
        aside: Aside,
    ) -> None:
        """The inferlet calls `wake` when it can run. `child`: as which its parent has asked for it, if it has one."""
        number = launched.number
        limits = child.limits if child is not None else limits
        # What `blobs` has closed is freed.
        self.launched = msgspec.structs.replace(launched, blobs={}) if launched.blobs else launched
        self.parent = parent
        self._child = child
        self.limits = limits
        self.environment = _environment(launched, parent)
        self.life = InferletLife(launched.age)
        self.kin: Kin = Kin(number, limits, parent.kin if parent else None)
        budget = parent.processor_time if parent else None
        self.processor_time: ProcessorTime = ProcessorTime(limits.cpu_seconds, limits.cpu_refill, budget)
        run_aside, charge = functools.partial(aside.run, ThreadShare()), self.processor_time.charge
        self.waits = Waits(limits.max_futures, lambda: wake(self), run_aside, charge)
        self.background = Background(self.waits, run_aside, charge)
        say = child.says if child is not None else functools.partial(outside.says, number)
        log = functools.partial(outside.logs, number)
        sender = Sender(self.id, limits, say, log)
        self.mail = ClientMail(number, limits, self.waits, sender, functools.partial(_received, outside, number, child))
        self.blobs = BlobTable(limits.max_blob_bytes, launched.blobs)
        self.holdings: ModelHoldings = NoHoldings()
        self.last_error = ""  # that it has logged: a guest that aborts has said there why
        self.no_worker = ""  # why a model that it wanted has none
        self.instance: Instance
        self._outside = outside

    @property
    def number(self) -> int:
        return self.launched.number

    @property
    def id(self) -> str:
        return f"i{self.number}"

    @property
    def status(self) -> Status:
        return self.life.status

    def reads_at_end(self, run: int) -> None:
        """It reads nothing of a decode run, by its future, before that is over."""
        self._outside.reads_at_end(self.number, run)

    def did(self, span: Span) -> None:
        """It has done something, of which its trace tells if there is one."""
        if HEADER in self.launched.environment:
            self._outside.did(self.number, span)

    def put_result(self, text: str) -> None:
        """What `main` returned, as JSON. Raises QuotaExceeded."""
        self.mail.check_size(text)
        self.life.put_result(text)

    def change(self, status: Status) -> None:
        """Raises IllegalTransition."""
        self.life.change(status)
        if status is Status.RUNNING:
            self._outside.runs(self.number)

    def finish(self, status: Status, error: str | None) -> None:
        """Says the end to the client, or to its parent. The caller has released the inferlet's holdings."""
        self.change(status)
        try:
            self._close()
        finally:
            if error is not None:
                error = cut_middle(error, self.limits.max_message_bytes)
            ended = Ended(status.value, self.life.result_of_end, error, inferlet=self.id)
            if self._child is not None:
                self._child.ended(ended)
            self._outside.ended(self.number, ended, self.processor_time.used)

    def _close(self) -> None:
        self.waits.end()
        self.background.end()
        self.blobs = BlobTable(0, {})
        self.mail.forget()
        self.mail.sender.close()
        self.holdings = NoHoldings()  # a way back: all that its calls have left would wait for a full collection


def _environment(launched: Launch, parent: Inferlet | None) -> dict[str, str]:
    """What its launch has set, and what the server tells it. A child has the model of its parent, if it is given no
    other one."""
    own = {"inferlet": f"i{launched.number}", "program": launched.program, "user": launched.standing.tenant.name}
    inherited = {}
    if parent is not None:
        own["parent"] = parent.id
        inherited = {name: text for name, text in parent.environment.items() if name == "model"}
    return {**inherited, **launched.environment, **own}


def _received(outside: Outside, number: int, child: Child | None, message: Received) -> None:
    if message.sender and child is not None:
        child.arrived(message.size)
    else:
        outside.received(number, message.size, message.blob_bytes)
