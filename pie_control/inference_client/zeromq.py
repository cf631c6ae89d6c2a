"""A connected DEALER socket, driven by the asyncio loop without zmq.asyncio (which costs several times as much a
message).

Theory. ZeroMQ tells events through a descriptor that is edge-triggered: it becomes readable once when *something*
may have changed, and not again for what was left undone. So after the descriptor fires, and after every send or
receive, and once at first, the socket is read until its event state says that it has nothing.

ZeroMQ tries again by itself until a worker answers. Nothing is sent before: the monitor tells when the handshake is
done. A connection that ends later is not made anew: what was said over it is lost, and whoever answers then may be
another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from pie_inference.options.address import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, is_ipv6
from pie_inference.options.secret import SOURCES, worker_key

from .connection import OnFrames, OnLost

EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""They are plain numbers: arithmetic on enums takes several times as long, and each message takes some."""
RECONNECT_MS = 100
LINGER_MS = 200
"""What was said last has this time to be sent; the loop waits for it."""
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
MOST_BROKEN_OFF = 3
"""A worker breaks the handshake off if it cannot read it; it may also have ended at this moment."""


class ZeroMQConnection:
    """A `Connection` to a worker that listens at `endpoint`; `on_reached` hears that it is there. Raises OSError."""

    def __init__(
        self, endpoint: str, secret: str | None, on_frames: OnFrames, on_reached: Callable[[], None], on_lost: OnLost
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._on_frames = on_frames
        self._on_reached = on_reached
        self._on_lost = on_lost
        self._outbox: deque[list[bytes]] = deque()
        self._reached = False
        self._broken_off = 0
        self._closed = False
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            self._configure(secret)
            watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | REFUSED | BROKEN_OFF | zmq.EVENT_DISCONNECTED
            self._monitor = self._socket.get_monitor_socket(watched)
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._socket.disable_monitor()
            self._context.destroy(linger=0)
            raise OSError(f"{endpoint}: {error}") from error
        self._loop.add_reader(self._socket.fileno(), self._pump)
        self._loop.add_reader(self._monitor.fileno(), self._pump_monitor)
        self._pump()  # a socket that was never found empty tells nothing
        self._pump_monitor()

    def _configure(self, secret: str | None) -> None:
        options: dict[int, int | bytes] = {zmq.LINGER: LINGER_MS, zmq.SNDHWM: 0, zmq.RCVHWM: 0}
        options |= {zmq.HEARTBEAT_IVL: HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS}
        options |= {zmq.RECONNECT_IVL: RECONNECT_MS, zmq.IPV6: int(is_ipv6(self._endpoint))}
        if secret is not None:
            public, private = zmq.curve_keypair()
            server = zmq.curve_public(z85.encode(worker_key(secret)))
            options |= {zmq.CURVE_SERVERKEY: server, zmq.CURVE_PUBLICKEY: public, zmq.CURVE_SECRETKEY: private}
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    def send(self, frames: list[bytes]) -> None:
        """Sends now, or as soon as the worker is reached. Never calls back from within."""
        if self._closed:
            return
        self._outbox.append(frames)
        if self._reached:
            self._flush()

    def _flush(self) -> None:
        while self._outbox:
            self._socket.send_multipart(self._outbox.popleft(), zmq.NOBLOCK)
        if _events(self._socket) & POLLIN:
            self._loop.call_soon(self._pump)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._context.destroy()

    def _pump(self) -> None:
        """Receives until there is nothing."""
        try:
            while not self._closed and _events(self._socket) & POLLIN:
                self._on_frames(self._socket.recv_multipart(zmq.NOBLOCK))
        except Exception:
            self._loop.call_soon(self._pump)  # the descriptor will not fire again for what is still to be read
            raise

    def _pump_monitor(self) -> None:
        while not self._closed and _events(self._monitor) & POLLIN:
            self._take_event(recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"])

    def _take_event(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._reached = True
            self._flush()
            self._on_reached()
        elif event == zmq.EVENT_DISCONNECTED:
            if self._reached:
                self._pump()  # what the worker has said last says why
                self._end(f"the connection to the worker at {self._endpoint} was lost")
        else:
            self._broken_off += 1
            if event != BROKEN_OFF or self._broken_off == MOST_BROKEN_OFF:
                self._end(f"the worker at {self._endpoint} does not have the secret of this server ({SOURCES})")

    def _end(self, reason: str) -> None:
        self._socket.setsockopt(zmq.LINGER, 0)
        self.close()
        self._on_lost(reason)


def _events(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(EVENTS))
