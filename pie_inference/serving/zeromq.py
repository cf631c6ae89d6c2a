"""The socket of a worker that listens for servers of other machines. The only importer of zmq in this package.

Theory. The socket is a ROUTER, which names each connection. The first connection that says Hello is that of the server
that is served; another server is refused while it lasts. A server whose connection broke comes back over another one,
perhaps before this end has noticed: each Hello names its server, and the new connection of the same one takes the place
of the old one. A connection ends with an event of the socket's monitor, by its descriptor, which a later connection may
have again. Events are looked at when no message is left, so what a connection has said is known before its end; and
before a Hello is heeded, so the end of a connection is not taken for that of a later one.

Where others can reach the address, CURVE lets nobody in who does not know the secret (`options.secret`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from .. import protocol as wire
from ..options.address import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, is_ipv6
from ..options.secret import SOURCES, worker_key

LINGER_MS = 2000
"""What was said last has this time to be sent, before the process ends."""
STRANGER_SECONDS = 10.0
"""Between two lines about processes that do not know the secret."""
GONE = -1
POLLIN = int(zmq.POLLIN)
HANDSHAKE_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
EVENTS = HANDSHAKE_FAILED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED


@dataclass
class _Peer:
    """A connection that has said Hello. `server`: which one it is of; `descriptor`: GONE once it has ended."""

    identity: bytes
    descriptor: int
    server: str
    address: str


class Listener:
    """A `Transport` to one server at a time. Raises ProtocolError if it cannot listen at `address`."""

    def __init__(self, address: str, secret: str | None) -> None:
        self._peer: _Peer | None = None  # that is served
        self._next: tuple[_Peer, wire.Hello] | None = None  # to be served
        self._told_of_stranger = -STRANGER_SECONDS
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        try:
            self._configure(address, secret)
            self._monitor = self._socket.get_monitor_socket(EVENTS)
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.disable_monitor()
            self._context.destroy(linger=0)
            raise wire.ProtocolError(f"cannot listen at {address}: {error}") from None
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def _configure(self, address: str, secret: str | None) -> None:
        options: dict[int, int | bytes] = {zmq.LINGER: LINGER_MS, zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.ROUTER_MANDATORY: 1}
        options |= {zmq.HEARTBEAT_IVL: HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS}
        if is_ipv6(address):
            options[zmq.IPV6] = 1
        if secret is not None:
            options |= {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: worker_key(secret)}
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    @property
    def address(self) -> str:
        """Where it listens, with the port that the system chose for port 0."""
        return self._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]

    @property
    def peer(self) -> str:
        """The address of the server that is served, or was last."""
        return self._peer.address if self._peer else "no address"

    def tell(self, text: str) -> None:
        """A line for whoever has started the worker."""
        print(f"worker: {text}", file=sys.stderr, flush=True)

    # ---- servers ----

    def accept(self) -> wire.Hello:
        """Waits for the next server; returns what it has said first."""
        self._peer = None
        while self._next is None:
            self._poller.poll()
            self._read()
        (self._peer, hello), self._next = self._next, None
        return hello

    def loads(self, progress: str) -> None:
        """Tells the server that waits how far the worker has come."""
        while self._poller.poll(0):
            self._read()
        if self._next is not None and self._next[1].protocol == wire.PROTOCOL_VERSION:
            self._answer(self._next[0].identity, wire.Loading(progress))

    def fail(self, reason: str) -> None:
        """Tells those who wait why nobody is served any more."""
        if self._peer is not None:
            self.send(wire.WorkerFailed(reason))
        while self._read() is not None or self._next is not None:
            if self._next is not None:
                self._answer(self._next[0].identity, wire.WorkerFailed(reason))
                self._next = None

    def close(self) -> None:
        """Ends all connections. Waits a short time for messages to be sent."""
        self._socket.disable_monitor()
        self._context.destroy()

    # ---- the server that is served ----

    def receive(self) -> wire.ToWorker:
        while (message := self.receive_nowait()) is None:
            self._poller.poll()
        return message

    def receive_nowait(self) -> wire.ToWorker | None:
        message = self._read()
        if isinstance(message, wire.Refused):
            self.tell(f"the server at {self.peer} does not want this worker: {message.reason}")
            return wire.Shutdown()
        if self._peer is None or self._peer.descriptor == GONE or self._next is not None:
            return wire.Shutdown()
        return message

    def send(self, message: wire.FromWorker) -> None:
        if self._peer is not None and not self._answer(self._peer.identity, message):
            self._peer.descriptor = GONE

    def _answer(self, identity: bytes, message: wire.FromWorker) -> bool:
        """Whether the connection is there."""
        try:
            self._socket.send_multipart([identity, *wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    # ---- all connections ----

    def _read(self) -> wire.ToWorker | None:
        """Takes a message, or if there is none what has happened to connections. Returns what the server says that is
        served. Raises ProtocolError for what it says that is none."""
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self._take_events()
            return None
        identity = frames[0].bytes
        if self._peer is not None and identity == self._peer.identity:
            return wire.decode_to_worker([frame.buffer for frame in frames[1:]])
        self._meet(identity, frames[1:])
        return None

    def _meet(self, identity: bytes, frames: Sequence[zmq.Frame]) -> None:
        """A connection that is not served says something."""
        try:
            hello = wire.decode_to_worker([frame.buffer for frame in frames])
        except wire.ProtocolError as error:
            self._answer(identity, wire.WorkerFailed(str(error)))
            self.tell(f"a process has said what is no message: {error}")
            return
        if not isinstance(hello, wire.Hello):
            return  # the rest of a connection that was served
        self._take_events()  # of a connection that has ended: this one may have its descriptor
        peer = _Peer(identity, int(frames[0].get(zmq.SRCFD)), hello.server, str(frames[0].get("Peer-Address")))
        served = self._peer if self._peer is not None and self._peer.descriptor != GONE else None
        if served is None and self._next is not None:
            served = self._next[0]
        if served is None or served.server == peer.server:
            self._next = peer, hello
            return
        self._answer(identity, wire.WorkerFailed(f"it serves another server, at {served.address}, until that one ends"))
        self.tell(f"a second server, at {peer.address}, is refused: the one at {served.address} is served")

    def _take_events(self) -> None:
        while int(self._monitor.getsockopt(zmq.EVENTS)) & POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._ended(int(event["value"]))
            elif event["event"] & HANDSHAKE_FAILED:
                self._tell_of_stranger()

    def _ended(self, descriptor: int) -> None:
        if self._peer is not None and self._peer.descriptor == descriptor:
            self._peer.descriptor = GONE
        if self._next is not None and self._next[0].descriptor == descriptor:
            self._next = None

    def _tell_of_stranger(self) -> None:
        now = time.monotonic()
        if now - self._told_of_stranger >= STRANGER_SECONDS:
            self._told_of_stranger = now
            self.tell(f"a process without the secret of this worker ({SOURCES}) has tried to connect, and was refused")
