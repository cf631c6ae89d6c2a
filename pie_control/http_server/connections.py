"""All connections of the HTTP server: how many there may be, and how long each may keep it waiting.

A sweep looks at all of them every now and then. It ends a connection whose request does not arrive, and one whose
client has stopped reading: time decides, not bytes, so a client that reads slowly gets everything. `protocols` tells
what happens on a connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope

from pie_control.errors import Overloaded
from pie_control.host_memory import TenantBytes

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
HEADER_SECONDS = 20.0
"""For the head of a request."""
BODY_SECONDS = 60.0
"""For its body, or a frame of a session, and one second more for each SLOWEST_BYTES."""
SLOWEST_BYTES = 1024
STALLED_SECONDS = 300.0
"""A client that takes nothing of what waits for it for this long has stopped reading."""
GRACE_SECONDS = 10.0
"""From the last word to a client until its connection is cut."""
FRAMES_PART = 8
"""What has come to all sessions, and they have not looked at, has this part of the machine's memory: an eighth. One
client may have half of it."""
SMALL_FRAMES = 64 << 10
"""Bytes of each session that do not count."""
TOO_MUCH = "too much has come to sessions and waits there: send less ahead of the replies, and try again later"
MAX_REFUSED = 64
"""Refused connections that may stay for their grace, where there are descriptors enough."""

clock = time.monotonic


class Watched(Protocol):
    """The protocol of a connection."""

    watch: WatchedConnection

    def is_reading(self) -> str:
        """The part of a request that it waits for: "head", "body", "frame" or ""."""

    def is_idle(self) -> bool:
        """Whether it is kept for a further request."""

    def serves(self) -> Scope | None:
        """The request that is under way, or the session."""

    def say_last(self, status: int, code: str, message: str) -> None:
        """Tells the client why the connection ends, and begins to close it."""


class WatchedConnection:
    """What the sweep knows of one connection. Times are of the monotonic clock."""

    __slots__ = (
        "address",
        "cut_at",
        "held",
        "progress",
        "protocol",
        "received",
        "refused",
        "started",
        "transport",
        "unsent",
    )

    def __init__(self, protocol: Watched, transport: asyncio.Transport, address: str) -> None:
        self.protocol = protocol
        self.transport = transport
        self.address = address
        self.refused = False
        self.started = self.progress = clock()  # of the request that is coming; since when nothing was taken
        self.received = 0  # bytes of this request
        self.unsent = 0  # bytes that waited at the last sweep
        self.held = 0  # bytes that have come to a session and count
        self.cut_at: float | None = None  # the last word is said

    def next_request(self) -> None:
        """A request has been answered."""
        self.started, self.received = clock(), 0

    def begin_frame(self) -> None:
        """A part of a frame has come; its time begins with the first one."""
        if not self.received:
            self.started = clock()

    def took(self) -> None:
        """The client took what waited for it."""
        self.progress = clock()


class Connections:
    """Admits at most `most` connections, and `most_per_client` from one address. `most_refused` may stay for their
    grace, so that their clients can read why."""

    def __init__(self, most: int, most_per_client: int) -> None:
        self.most = most
        self.most_refused = MAX_REFUSED
        self._most_per_client = most_per_client
        self._watches: set[WatchedConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._refused = 0
        self._frames = TenantBytes(FRAMES_PART, "")
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Admitted connections."""
        return len(self._watches) - self._refused

    def open(self, protocol: Watched, transport: asyncio.Transport, address: str) -> None:
        """Gives a new connection its `watch`. It may be refused; the protocol must then not serve it."""
        watch = protocol.watch = WatchedConnection(protocol, transport, address)
        self._make_room(address)
        reason = self._objection(address)
        self._watches.add(watch)
        self._by_address[address] += 1
        if reason:
            self._refuse(watch, reason)

    def _make_room(self, address: str) -> None:
        """Closes the connection that has been idle longest, if a further one would be refused."""
        of_client = self._by_address[address] >= self._most_per_client
        if of_client or len(self) >= self.most:
            some = (one for one in self._watches if one.address == address or not of_client)
            idle = min((one for one in some if one.protocol.is_idle()), key=lambda one: one.started, default=None)
            if idle is not None:
                self.close(idle)
                idle.transport.close()

    def _objection(self, address: str) -> str:
        if len(self) >= self.most:
            return f"the server has {self.most} connections, which is the limit (--max-connections): try again later"
        if self._by_address[address] >= self._most_per_client:
            return (
                f"this client has {self._most_per_client} connections, which is the limit for one client "
                "(--max-connections-per-client): close some, and let many inferlets share a session"
            )
        return ""

    def _refuse(self, watch: WatchedConnection, reason: str) -> None:
        watch.refused = True
        self._refused += 1
        self._by_address[watch.address] -= 1
        if self._refused > self.most_refused:
            watch.transport.abort()
        else:
            self.end(watch, 503, "overloaded", reason)

    def close(self, watch: WatchedConnection) -> None:
        """The connection is lost. Its protocol, which has the watch, is freed at once, as nothing leads back to it."""
        if watch not in self._watches:
            return
        self.waits(watch, 0)
        self._watches.remove(watch)
        del watch.protocol
        if watch.refused:
            self._refused -= 1
            return
        self._by_address[watch.address] -= 1
        if not self._by_address[watch.address]:
            del self._by_address[watch.address]

    def waits(self, watch: WatchedConnection, size: int) -> None:
        """So many bytes have come to a session, which it has not looked at. Ends it if that is too much."""
        if watch not in self._watches:
            return
        more = max(0, size - SMALL_FRAMES) - watch.held
        try:
            if more > 0:
                self._frames.hold(watch.address, more)
            elif more:
                self._frames.release(watch.address, -more)
        except Overloaded:
            if watch.cut_at is None:
                self.end(watch, 503, "overloaded", TOO_MUCH)
        else:
            watch.held += more

    def check(self, objection: Callable[[Scope], str]) -> None:
        """Ends those whose request or session may not go on: `objection` says why, or nothing."""

        def look(watch: WatchedConnection) -> None:
            served = watch.protocol.serves()
            if watch.cut_at is None and served is not None and (reason := objection(served)):
                self.end(watch, 401, "unauthorized", reason)

        self._each(look)

    def _each(self, look: Callable[[WatchedConnection], None]) -> None:
        """Looks at all connections. One at which that fails is cut, and the others have their turn."""
        for watch in list(self._watches):
            try:
                look(watch)
            except Exception:
                log.exception("a connection of %s is cut", watch.address or "a client")
                watch.transport.abort()

    # ---- the sweep ----

    def start(self) -> None:
        """Sweeps from now on."""
        self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self.start)
        self.sweep(clock())

    def stop(self) -> None:
        """Sweeps no more, and cuts what is left. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for watch in list(self._watches):
            watch.transport.abort()

    def sweep(self, now: float) -> None:
        """Ends the connections whose time is over."""
        self._each(lambda watch: self._look_at_time(watch, now))

    def _look_at_time(self, watch: WatchedConnection, now: float) -> None:
        unsent = watch.transport.get_write_buffer_size()
        if unsent == 0 or unsent < watch.unsent:
            watch.progress = now
        watch.unsent = unsent
        if watch.cut_at is not None:
            if now > watch.cut_at:
                watch.transport.abort()
        elif now - watch.progress > STALLED_SECONDS:
            reason = f"the client did not read for {STALLED_SECONDS:g} s"
            log.warning("giving up a connection of %s: %s", watch.address or "a client", reason)
            self.end(watch, 408, "overloaded", reason)
        elif part := _overdue(watch, now):
            self.end(watch, 408, "bad-request", f"the {part} of the request did not arrive in time: send it again")

    def end(self, watch: WatchedConnection, status: int, code: str, message: str) -> None:
        """The last word on a connection, which is cut a while later."""
        watch.cut_at = clock() + GRACE_SECONDS
        watch.protocol.say_last(status, code, message)


def _overdue(watch: WatchedConnection, now: float) -> str:
    part = watch.protocol.is_reading()
    allowed = HEADER_SECONDS if part == "head" else BODY_SECONDS + watch.received / SLOWEST_BYTES
    return part if part and now - watch.started > allowed else ""
