"""A bound ROUTER socket for one peer, driven by the asyncio loop without zmq.asyncio (which costs several times as much
a message).

Theory. ZeroMQ tells events through a descriptor that is edge-triggered: it becomes readable once when *something*
may have changed, and not again for what was left undone. So after the descriptor fires, and after every send or
receive, and once at first, the socket is read until its event state says that it has nothing.

A worker sends an empty frame when it has connected (ZMQ_PROBE_ROUTER). The first one that does is the peer, for good:
messages go to it by its identity, whatever others connect. They are refused, and their coming and going is no news.
Where others can reach the endpoint, CURVE lets nobody in who does not know the secret (`protocol.secret`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

import zmq
from zmq.utils.monitor import recv_monitor_message

from pie_inference.protocol.secret import SECRET_VARIABLE, control_key

from .connection import OnDisconnected, OnFrames, Polling

EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""As plain numbers: arithmetic on enums takes several times as long, and each message takes some."""
HEARTBEAT_MS = 300
HEARTBEAT_TIMEOUT_MS = 1000

HANDSHAKE_FAILED = (  # NO_DETAIL: the stranger has noticed first, and left
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
MOST_TOLD = 100
"""Peers that are refused by name; the others get no answer."""

log = logging.getLogger("pie.worker")


class ZeroMQConnection:
    """A `Connection` to a worker that is started elsewhere. `refusal`: what is sent to a second peer. Raises
    OSError; ValueError for a secret that is none."""

    def __init__(
        self,
        endpoint: str,
        secret: str | None,
        refusal: list[bytes],
        on_frames: OnFrames,
        on_disconnected: OnDisconnected,
        poll_us: int = 0,
    ) -> None:
        self._polling = Polling(poll_us / 1e6, self._pump) if poll_us else None
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._refusal = refusal
        self._on_frames = on_frames
        self._on_disconnected = on_disconnected
        self._outbox: deque[list[bytes]] = deque()
        self._peer: bytes | None = None
        self._peer_descriptor = -1  # of its connection; -1: it has gone
        self._told: set[object] = set()
        self._closed = False
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        try:
            self._configure(endpoint, secret)
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
            self._socket.bind(endpoint)
        except BaseException as error:
            self._socket.disable_monitor()
            self._context.destroy(linger=0)
            if isinstance(error, zmq.ZMQError):
                raise OSError(f"{endpoint}: {error}") from error
            raise
        self._loop.add_reader(self._socket.fileno(), self._pump)
        self._loop.add_reader(self._monitor.fileno(), self._pump_monitor)
        self._pump()  # a socket that was never found empty tells nothing
        self._pump_monitor()

    def _configure(self, endpoint: str, secret: str | None) -> None:
        options: dict[int, int | bytes] = {zmq.LINGER: 0, zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.ROUTER_MANDATORY: 1}
        if endpoint.startswith("tcp:"):  # a local peer's end is noticed anyway, and must not be presumed after a sleep
            options |= {zmq.HEARTBEAT_IVL: HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS}
        if secret is not None:
            options |= {zmq.CURVE_SERVER: 1, zmq.CURVE_SECRETKEY: control_key(secret)}
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    def send(self, frames: list[bytes]) -> None:
        """Sends now, or as soon as the peer is connected. Never calls back from within."""
        self._outbox.append(frames)
        self._flush()
        if self._polling:
            self._polling.begin()
        elif _events(self._socket) & POLLIN:
            self._loop.call_soon(self._pump)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._polling:
            self._polling.stop()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _flush(self) -> None:
        while self._outbox and self._peer is not None:
            self._send(self._peer, self._outbox.popleft())

    def _send(self, identity: bytes, frames: list[bytes]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it has gone in between, which the monitor tells
            self._socket.send_multipart([identity, *frames], zmq.NOBLOCK)

    def _pump(self) -> None:
        """Receives until there is nothing."""
        try:
            while not self._closed and _events(self._socket) & POLLIN:
                if self._peer is None:
                    self._take_first(self._socket.recv_multipart(zmq.NOBLOCK, copy=False))
                    continue
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
                if identity == self._peer:
                    if self._polling:
                        self._polling.stop()
                    self._on_frames(frames)
                else:
                    self._refuse(identity)
        except Exception:
            self._loop.call_soon(self._pump)  # the descriptor will not fire again for what is still to be read
            raise

    def _take_first(self, frames: list[zmq.Frame]) -> None:
        """Takes the sender of a probe as the peer."""
        identity = bytes(frames[0].buffer)
        if [len(frame.buffer) for frame in frames[1:]] != [0]:
            self._refuse(identity)
            return
        self._peer, self._peer_descriptor = identity, int(frames[1].get(zmq.SRCFD))
        self._flush()

    def _refuse(self, identity: bytes) -> None:
        if self._peer_descriptor < 0 and self._peer is not None:
            return  # the worker itself, which comes back: whoever binds this endpoint next will take it
        if self._tell(identity, "another process than the worker has connected to %s and is refused"):
            self._send(identity, self._refusal)

    def _tell(self, what: object, message: str) -> bool:
        """Logs something, once for each `what`, and for a bounded number of them; whether it did."""
        if what in self._told or len(self._told) >= MOST_TOLD:
            return False
        self._told.add(what)
        log.warning(message, self._endpoint)
        return True

    def _pump_monitor(self) -> None:
        while not self._closed and _events(self._monitor) & POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            if event["event"] & HANDSHAKE_FAILED:
                self._tell("secret", f"a process that does not know {SECRET_VARIABLE} has tried to connect to %s")
            elif event["value"] == self._peer_descriptor:
                self._peer_descriptor = -1
                self._on_disconnected(None)


def _events(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(EVENTS))
