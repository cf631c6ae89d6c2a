"""Inferlets that an inferlet has launched: what they say to each other, how they end, and what they share.

Theory of operation. A child is launched on the host of its parent, by the control process, which has programs and the
registry of inferlets; all else happens on the host. So what a family holds is known there at every moment, and a lost
host takes it as a whole. A child has the limits of its parent, or narrower ones, and what it holds counts as its
parent's as well, up to the root: pages and embeds (`resources/quotas.py`), processor time (`processor_time.py`), memory
(`over_its_memory`), in which messages between them count that were not received. So a family never holds more than an
inferlet without children may. A child ends with its parent. Its `send` and `receive` lead to the parent, whose client
they would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ...config import InferletLimits
from ...errors import CallError, Cancelled, QuotaExceeded
from ...texts import byte_size
from ..events import Ended, LogLine, Span
from ..mailbox import EVENT_BYTES, MAX_KEPT_BYTES, Pace, Received
from ..waiting.waits import Waits
from .client import ClientMail
from .mail import Mailbox, Source, send_paced

MOST_DEPTH = 4
"""Generations below one that a client has launched."""
MOST_KEPT = 8 << 20
"""Bytes of children that have ended: with more, no further child is launched."""
OF_CHILD = "a message of a child"
PARENT = "parent"
"""The sender of messages that are not from clients."""


class Nursery(Protocol):
    """Who launches children, and ends them."""

    def launches(
        self, parent: int, child: int, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """An inferlet wants a child: its number among those that it has asked for. `program`: "": its own."""

    def ends(self, number: int, reason: str) -> None:
        """Ends an inferlet soon."""


class ChildEnd(NamedTuple):
    """How a child ended, as JSON."""

    text: str


class Child(Source):
    """One that an inferlet has asked for. The parent has it as long as it has the handle."""

    def __init__(
        self, parent: Waits, number: int, limits: InferletLimits, hold: Callable[[int], None] = lambda _: None
    ) -> None:
        """`number`: among those of this parent. `limits`: those of the child. `hold` hears of bytes of messages that
        wait to be received; a negative number: they do no more."""
        super().__init__(Mailbox(parent, self._took, OF_CHILD))
        self.number = number
        self.limits = limits
        self.inferlet: ClientMail | None = None  # while it runs
        self.end: ChildEnd | CallError | None = None
        self._parent = parent
        self._early: list[str] = []  # messages to it, before it runs
        self._hold = hold
        self._pace = Pace()  # of messages to it
        self._taken = 0  # bytes of messages from it
        self._said = 0  # the same, taken or not
        self._joins: dict[int, None] = {}  # futures
        self._is_forgotten = False

    # ---- for the parent ----

    @property
    def _name(self) -> str:
        return "a child" if self.inferlet is None else f"child i{self.inferlet.number}"

    def join(self, future: int) -> None:
        """The future gets how the child ended, or why it was not launched."""
        self._joins[future] = None
        self._expect(future)
        self._answer()

    def _expect(self, future: int) -> None:
        self._parent.begin(future, lambda: self._joins.pop(future), f"the end of {self._name}")

    def send(self, text: str, size: int, gone: Any) -> int | None:
        """Sends it a message of so many bytes, as `ClientMail.send`."""
        what = f"{self._name} to take messages"
        return send_paced(self._parent, self._pace, size, partial(self.post, text), what, gone)

    def post(self, text: str) -> None:
        """A message to it; dropped if it has ended. Raises QuotaExceeded if too much waits."""
        if self._pace.bytes > MAX_KEPT_BYTES:
            raise QuotaExceeded(
                f"the child receives slowly, and {self._pace.bytes} bytes of messages wait for it: await the future "
                "that `send` returns before you send more"
            )
        if self.end is None:
            self._add(byte_size(text) + EVENT_BYTES)
            if self.inferlet is None:
                self._early.append(text)
            else:
                self.inferlet.post(text, PARENT)

    def _add(self, size: int) -> None:
        self._pace.add(size)
        self._hold(size)

    def cancel(self, nursery: Nursery) -> None:
        """It ends soon; nothing happens if it has ended."""
        if self.inferlet is not None:
            nursery.ends(self.inferlet.number, "its parent cancelled it")
        elif self.end is None:
            self.ended(Ended("terminated", None, "its parent cancelled it before it began", inferlet=""))

    def _took(self, message: Received) -> None:
        self._taken += message.size
        self._hold(-message.size)
        if self.inferlet is not None and not self._is_forgotten:
            self.inferlet.took(self._taken)

    def forget(self) -> None:
        """The parent wants to hear nothing more of it: what waits for the parent is dropped, and so is what comes."""
        self._is_forgotten = True
        self._hold(self._taken - self._said)
        self._box.end(Cancelled("the child was dropped"))
        self._box = Mailbox(self._parent, self._took, OF_CHILD)
        if self.inferlet is not None:
            self.inferlet.took(self._said)

    @property
    def kept_bytes(self) -> int:
        """The size of its result and of its messages that nobody has received, if it has ended."""
        return len(self.end.text) + self._said - self._taken if isinstance(self.end, ChildEnd) else 0

    # ---- for the host ----

    def begins(self, inferlet: ClientMail) -> None:
        """It was launched."""
        self.inferlet = inferlet
        inferlet.took(0)  # somebody reads what it sends
        for future in self._joins:
            self._expect(future)  # by its name now
        early, self._early = self._early, []
        for text in early:
            inferlet.post(text, PARENT)

    def arrived(self, size: int) -> None:
        """It has received messages of this size from its parent."""
        self._add(-size)

    def says(self, text: str) -> None:
        """A message to its parent."""
        size = byte_size(text) + EVENT_BYTES
        self._said += size
        if not self._is_forgotten:
            self._hold(size)
            self._box.put(text)
        elif self.inferlet is not None:
            self.inferlet.took(self._said)

    def ended(self, end: Ended | CallError) -> None:
        """It has ended, or was refused. Once."""
        self.inferlet = None
        self._early.clear()
        self.end = end if isinstance(end, CallError) else ChildEnd(_as_json(end))
        self._add(-self._pace.bytes)
        self._box.end()
        self._answer()

    def _answer(self) -> None:
        while self._joins and self.end is not None:
            future, _ = self._joins.popitem()
            self._parent.conclude(future, self.end, len(self.end.text) if isinstance(self.end, ChildEnd) else 0)


def _as_json(end: Ended) -> str:
    told = {"inferlet": end.inferlet, "status": str(end.status), "result": end.result, "error": end.error}
    return json.dumps(told)


class Kin:
    """What an inferlet is to others: whose child, and who its children are."""

    __slots__ = (
        "_asked",
        "_waiting",
        "below",
        "children",
        "depth",
        "limits",
        "mail",
        "memory_bytes",
        "number",
        "parent",
    )

    def __init__(self, number: int, limits: InferletLimits, parent: Kin | None) -> None:
        self.number = number
        self.parent = parent
        self.limits = limits
        self.memory_bytes = 0  # by which the process grew in its turns
        self.mail = 0  # bytes of messages between it and its children that were not received
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[int, Kin] = {}  # that run, by number of the inferlet
        self.below = 0  # descendants that run or were asked for
        self._asked = 0
        self._waiting: dict[int, Child] = {}  # asked for, not launched yet

    def lineage(self) -> Iterator[Kin]:
        """Itself and its ancestors."""
        kin: Kin | None = self
        while kin is not None:
            yield kin
            kin = kin.parent

    def ask(self, parent: Waits, limits: InferletLimits) -> Child:
        """A child that is about to be launched. Raises QuotaExceeded."""
        if self.depth >= MOST_DEPTH:
            raise QuotaExceeded(
                f"there are {MOST_DEPTH} generations above this inferlet already: let one of them launch"
            )
        for kin in self.lineage():
            if kin.below >= kin.limits.max_children:
                whose = "it has" if kin is self else f"its family has {kin.below} below i{kin.number}, and"
                raise QuotaExceeded(
                    f"{whose} {kin.below} children that run, the limit is {kin.limits.max_children} (max_children): "
                    "join some first"
                )
        for kin in self.lineage():
            kin.below += 1
        self._asked += 1
        child = self._waiting[self._asked] = Child(parent, self._asked, limits, self.hold)
        return child

    def launched(self, number: int) -> Child | None:
        """The child with this number is launched; None: nobody wants it any more."""
        child = self._waiting.pop(number, None)
        if child is not None and child.end is not None:
            self.left()
            return None
        return child

    def refused(self, number: int, error: CallError) -> None:
        """The child with this number cannot be launched."""
        child = self._waiting.pop(number, None)
        if child is not None:
            self.left()
            if child.end is None:
                child.ended(error)

    def begins(self) -> None:
        """It runs: its parent has one child more."""
        if self.parent is not None:
            self.parent.children[self.number] = self

    def ended(self) -> None:
        """It does not run any more, nor does anybody below it."""
        if self.parent is not None:
            del self.parent.children[self.number]
            self.parent.left()

    def left(self) -> None:
        """One of its children has ended, or does not come."""
        for kin in self.lineage():
            kin.below -= 1

    # ---- memory ----

    def grew(self, size: int) -> None:
        """The process has grown by so many bytes in its turns."""
        self.memory_bytes += size

    def hold(self, size: int) -> None:
        """Further bytes of messages between it and its children wait; a negative number: they do no more."""
        self.mail += size

    def family_bytes(self) -> int:
        """The memory of itself and of those below it."""
        return self.memory_bytes + self.mail + sum(child.family_bytes() for child in self.children.values())

    @property
    def is_family(self) -> bool:
        """Whether it has others above or below it. The memory of one that has not is bounded by the sandbox alone."""
        return self.parent is not None or bool(self.children) or self.mail > 0

    def over_its_memory(self) -> Kin | None:
        """The one of the lineage that holds more than it may, together with those below it."""
        return next((kin for kin in self.lineage() if kin.family_bytes() > kin.limits.memory_bytes), None)


class Outside(Protocol):
    """Who hears of an inferlet what its clients may know."""

    def runs(self, number: int) -> None:
        """It has its first turn."""

    def says(self, number: int, text: str) -> None:
        """It says something to its client."""

    def logs(self, number: int, line: LogLine) -> None:
        """It has a line for its log."""

    def ended(self, number: int, event: Ended, cpu_seconds: float) -> None:
        """The last that it says."""

    def received(self, number: int, size: int, blob_bytes: int) -> None:
        """It has received posted messages of this size, and of blobs with them."""

    def reads_at_end(self, number: int, run: int) -> None:
        """It reads nothing of a decode run before that is over."""

    def did(self, number: int, span: Span) -> None:
        """It has done something of which its trace tells."""
