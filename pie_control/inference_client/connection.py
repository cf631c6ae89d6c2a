"""A bound DEALER socket driven by the asyncio loop, without zmq.asyncio (which costs several times as much a message).

Theory. ZeroMQ tells events through a descriptor that is edge-triggered: it becomes readable once when *something*
may have changed, and not again for what was left undone. So after the descriptor fires, and after every send or
receive, and once at first, the socket is read until its event state says that it has nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

HEARTBEAT_MS = 300
HEARTBEAT_TIMEOUT_MS = 1000

FramesHandler = Callable[[list[bytes]], None]


class Connection:
    """Sends and receives frames; calls back on the thread of the loop it was made in."""

    def __init__(self, endpoint: str, on_frames: FramesHandler, on_disconnected: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_frames = on_frames
        self._on_disconnected = on_disconnected
        self._outbox: deque[list[bytes]] = deque()
        self._closed = False
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._configure(endpoint)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._bind(endpoint)
        self._loop.add_reader(self._socket.fileno(), self._pump)
        self._loop.add_reader(self._monitor.fileno(), self._pump_monitor)
        self._pump()  # a socket that was never found empty tells nothing
        self._pump_monitor()

    def _configure(self, endpoint: str) -> None:
        options = {zmq.LINGER: 0, zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.IMMEDIATE: 1}
        if endpoint.startswith("tcp:"):  # a local peer's end is noticed anyway, and must not be presumed after a sleep
            options |= {zmq.HEARTBEAT_IVL: HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS}
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    def _bind(self, endpoint: str) -> None:
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._socket.disable_monitor()
            self._context.destroy(linger=0)
            raise

    def send(self, frames: list[bytes]) -> None:
        """Sends now, or as soon as the peer is connected. Never calls back from within."""
        self._outbox.append(frames)
        self._flush()
        if _events(self._socket) & zmq.POLLIN:
            self._loop.call_soon(self._pump)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _flush(self) -> None:
        while self._outbox and _events(self._socket) & zmq.POLLOUT:
            try:
                self._socket.send_multipart(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:  # the peer has gone in between
                return
            self._outbox.popleft()

    def _pump(self) -> None:
        """Sends and receives until the socket can do neither."""
        try:
            while not self._closed:
                self._flush()
                if not _events(self._socket) & zmq.POLLIN:
                    return
                self._on_frames(self._socket.recv_multipart(zmq.NOBLOCK))
        except Exception:
            self._loop.call_soon(self._pump)  # the descriptor will not fire again for what is still to be read
            raise

    def _pump_monitor(self) -> None:
        while not self._closed and _events(self._monitor) & zmq.POLLIN:
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
            self._on_disconnected()


def _events(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.EVENTS))
