"""An inferlet as its clients see it, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..config import InferletLimits
from ..errors import BadRequest, Conflict, Overloaded
from ..host_memory import TenantBytes
from ..inferlets.events import Ended, InferletUsage, InferletWait, LogLine
from ..inferlets.lifecycle import ENDINGS, Status, check_transition
from ..inferlets.mailbox import EVENT_BYTES, NO_BLOBS, size_of
from ..programs.store import Program
from ..tenants.tenant import DEFAULT_STANDING, Standing
from ..texts import byte_size
from .outbox import Listener, Outbox

MAX_INBOX_BYTES = 8 << 20
"""Limit for messages that an inferlet has not received."""
MAIL_PART = 4
"""The messages to and from all inferlets that wait have this part of the machine's memory, with blobs: a fourth."""
OF_MAIL = "of messages to and from inferlets that wait: let inferlets receive some first, and clients read"


@dataclass(frozen=True)
class InferletInfo:
    """The state of an inferlet, for clients. Times are seconds since the epoch. `host`: number of the application host
    that runs it, 0: the control process. What it uses is as its host told last, a moment ago at most. `parent`: id of
    the inferlet that has launched it; None: a client has. `key`: id of the key that has launched it, or its parent;
    empty: none has. `waits_for`: what it waits for, and since when; None: it computes, or its host was not asked, as
    lists and look-ups do."""

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
    host: int = 0
    parent: str | None = None
    waits_for: str | None = None
    waits_since: float | None = None
    key: str = ""
    tenant: str = DEFAULT_STANDING.tenant.name


class Entry:
    """What the server keeps of one inferlet: what its clients can ask for, and what they have not read yet."""

    def __init__(
        self,
        number: int,
        program: Program,
        limits: InferletLimits,
        post: Callable[[int, str, Mapping[str, bytes]], None],
        tell_room: Callable[[int, int, bool], None],
        standing: Standing = DEFAULT_STANDING,
        mail: TenantBytes | None = None,
    ) -> None:
        """`post` sends a message to the inferlet with this number; `tell_room` tells it how much of what it has sent
        was taken, and whether a client reads. `mail`: the messages of all inferlets; None: it is the only one."""
        self.number = number
        self.id = f"i{number}"
        self.host = 0
        self.parent: str | None = None  # id of the inferlet that has launched it
        self.traceparent = ""  # its place in a trace, as W3C's header says it; "": it has none
        self.program = program
        self.runs_as = standing
        self.standing = standing  # in which its children are launched: the operator may change it
        self.status = Status.CREATED
        self.created = time.time()
        self.started = time.monotonic()  # unlike `created`, it survives a step of the clock
        self.ended: float | None = None
        self.result: str | None = None
        self.error: str | None = None
        self.cpu_seconds = 0.0
        self.pages = self.embeds = 0
        self.kept_when_ended = 0  # size of log, messages that nobody took, result and error
        self._post = post
        self._mail = mail or TenantBytes(MAIL_PART, OF_MAIL)
        self._tell_room = tell_room
        self._unread_bytes = 0  # of messages that no client has taken, as far as was told
        self._taken_bytes = 0
        self._inbox_bytes = 0  # posted and not received
        self._inbox_blob_bytes = 0  # the same of the blobs with these messages
        self._most_blob_bytes = limits.max_blob_bytes
        self.outbox = Outbox(self.id, limits, self._took)

    # ---- for clients ----

    def info(self, wait: InferletWait | None = None) -> InferletInfo:
        """`wait`: what its host has just said that it waits for."""
        waits = wait if wait and wait.what and self.status not in ENDINGS else None
        return InferletInfo(
            id=self.id,
            program=self.program.hash,
            program_name=self.program.title,
            status=self.status,
            created=self.created,
            ended=self.ended,
            result=self.result,
            error=self.error,
            cpu_seconds=round(self.cpu_seconds, 6),
            pages=self.pages,
            embeds=self.embeds,
            host=self.host,
            parent=self.parent,
            waits_for=waits.what if waits else None,
            waits_since=round(time.time() - waits.seconds, 3) if waits else None,
            key=self.standing.key,
            tenant=self.standing.tenant.name,
        )

    def send(self, text: str, blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """Sends a message to the inferlet, with blobs by name, which `BlobStore.find` has checked; raises Conflict if
        it has ended, Overloaded if it does not keep up, BadRequest for one that is too long."""
        if self.status in ENDINGS:
            raise Conflict(f"inferlet {self.id} has ended ({self.status})")
        size, blob_bytes = byte_size(text), sum(map(len, blobs.values()))
        if size > MAX_INBOX_BYTES:
            raise BadRequest(f"the message has {size} bytes, more than {MAX_INBOX_BYTES}: send it in parts")
        if self._inbox_bytes + size > MAX_INBOX_BYTES:
            raise Overloaded(f"{self._inbox_bytes} bytes of messages wait for the inferlet: let it receive some first")
        if blobs and self._inbox_blob_bytes + blob_bytes > self._most_blob_bytes:
            raise Overloaded(
                f"{self._inbox_blob_bytes} bytes of blobs wait for the inferlet, and {self._most_blob_bytes} may "
                "(--max-blob-bytes): let it receive some messages first"
            )
        self._mail.hold(self.runs_as.tenant.name, size + EVENT_BYTES + blob_bytes)
        self._inbox_bytes += size + EVENT_BYTES
        self._inbox_blob_bytes += blob_bytes
        self._post(self.number, text, blobs)

    def logs(self, after: int = 0) -> tuple[LogLine, ...]:
        return self.outbox.logs(after)

    def attach(self, listener: Listener) -> None:
        """Gives a listener, which must not block, all events: first those that nobody has taken."""
        self.outbox.push_to(listener)

    # ---- for its host ----

    def runs(self) -> None:
        """It had its first turn."""
        check_transition(self.status, Status.RUNNING)
        self.status = Status.RUNNING

    def received(self, size: int, blob_bytes: int = 0) -> None:
        """It has received messages of this size, with blobs of `blob_bytes`."""
        size, blob_bytes = min(size, self._inbox_bytes), min(blob_bytes, self._inbox_blob_bytes)
        self._inbox_bytes -= size
        self._inbox_blob_bytes -= blob_bytes
        self._mail.release(self.runs_as.tenant.name, size + blob_bytes)

    def said(self, text: str) -> None:
        """It has a message for its client. Raises Overloaded if too many wait; this one is kept all the same."""
        size = size_of(text)
        try:
            self._mail.hold(self.runs_as.tenant.name, size)
            self._unread_bytes += size
        finally:
            self.outbox.said(text)

    def _took(self, taken: int, read: bool) -> None:
        """Clients have taken so many bytes of its messages, in all."""
        held = min(taken - self._taken_bytes, self._unread_bytes)  # what was too much is not held
        self._mail.release(self.runs_as.tenant.name, held)
        self._unread_bytes -= held
        self._taken_bytes = taken
        self._tell_room(self.number, taken, read)

    def uses(self, usage: InferletUsage) -> float:
        """What it has used, and holds now; returns the processor seconds since this was told last."""
        since = usage.cpu_seconds - self.cpu_seconds
        self.cpu_seconds, self.pages, self.embeds = usage.cpu_seconds, usage.pages, usage.embeds
        return since

    def come_back(self, created: float, ended: float, lines: Iterable[LogLine], end: Ended) -> None:
        """It ended under a server before: all that is left of it. Times are in seconds since the epoch."""
        self.created = created
        self.status = Status.RUNNING
        self.outbox.restore(lines)
        self.ends(end)
        self.ended = ended

    def ends(self, event: Ended) -> None:
        """It has ended: the last event for its client."""
        status = Status(event.status)
        check_transition(self.status, status)
        self.status = status
        self.ended = time.time()
        self.result, self.error = event.result, event.error
        self.received(self._inbox_bytes, self._inbox_blob_bytes)
        self._mail.release(self.runs_as.tenant.name, self._unread_bytes)  # they count as what is kept of it
        self.pages = self.embeds = 0
        self.outbox.ended(event)
        self.kept_when_ended = self.outbox.kept_bytes + byte_size(event.result or "") + byte_size(event.error or "")
