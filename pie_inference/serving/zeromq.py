"""The connection of a worker that is started by hand, on whatever machine. The only importer of zmq in this package."""

from __future__ import annotations

import time

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ..protocol import FromWorker, ProtocolError, Refused, ToWorker, decode_to_worker, encode
from ..protocol.secret import SECRET_VARIABLE, control_key

POLLIN = int(zmq.POLLIN)
LINGER_MS = 2000  # a failure message must be sent before the process ends
HEARTBEAT_MS = 1000
HEARTBEAT_TIMEOUT_MS = 5000
HANDSHAKE_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
MOST_BROKEN_OFF = 3
"""A control process breaks the handshake off if it cannot read it; it may also have ended at this moment."""


class ZeroMQTransport:
    """A `Transport` to the control process, which has bound `endpoint`, and proves that it knows the secret if there is
    one. Before it sleeps, it looks for a message for `poll_us` microseconds, which takes a core and saves the time to
    wake up. Raises ProtocolError for a secret that is none."""

    def __init__(self, endpoint: str, secret: str | None = None, poll_us: int = 0) -> None:
        self._poll_seconds = poll_us / 1e6
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        if endpoint.startswith("tcp:"):
            self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.PROBE_ROUTER, 1)  # tells the control process of each new connection
        if secret is not None:
            self._secure(secret)
        self._monitor = self._socket.get_monitor_socket(HANDSHAKE_FAILED | BROKEN_OFF)
        self._socket.connect(endpoint)

    def _secure(self, secret: str) -> None:
        try:
            public = zmq.curve_public(z85.encode(control_key(secret)))
            own_public, own_private = zmq.curve_keypair()
        except (ValueError, zmq.ZMQError) as error:  # ZMQError: built without CURVE
            self._context.destroy(linger=0)
            raise ProtocolError(f"the connection cannot be secured: {error}") from None
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, public)
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, own_public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, own_private)

    def await_control(self) -> ToWorker:
        """Waits for the first message. Raises ProtocolError if the control process does not want this worker, or does
        not share its secret."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        broken_off = 0
        while self._socket not in dict(poller.poll()):
            broken_off += 1
            if recv_monitor_message(self._monitor)["event"] != BROKEN_OFF or broken_off == MOST_BROKEN_OFF:
                raise ProtocolError(f"the control process does not know the secret of this worker, ${SECRET_VARIABLE}")
        self._socket.disable_monitor()
        message = self.receive()
        if isinstance(message, Refused):
            raise ProtocolError(message.reason)
        return message

    def receive(self) -> ToWorker:
        """Waits for the next message. Raises ProtocolError."""
        if self._poll_seconds and (message := self._poll()) is not None:
            return message
        return decode_to_worker(self._socket.recv_multipart())

    def _poll(self) -> ToWorker | None:
        end = time.perf_counter() + self._poll_seconds
        while not int(self._socket.getsockopt(zmq.EVENTS)) & POLLIN:
            if time.perf_counter() > end:
                return None
        return self.receive_nowait()

    def receive_nowait(self) -> ToWorker | None:
        """The next message; None if there is none. Raises ProtocolError."""
        try:
            return decode_to_worker(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def send(self, message: FromWorker) -> None:
        self._socket.send_multipart(encode(message))

    def close(self) -> None:
        """Closes the connection. Waits a short time for messages to be sent."""
        self._socket.disable_monitor()
        self._context.destroy()
