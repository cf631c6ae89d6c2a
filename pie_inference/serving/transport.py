"""The worker's end of the wire. The only importer of zmq in this package."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import zmq

from ..protocol import FromWorker, ToWorker, decode_to_worker, encode

LINGER_MS = 2000  # a failure message must be sent before the process ends
HEARTBEAT_MS = 1000
HEARTBEAT_TIMEOUT_MS = 5000


class Transport:
    """A connection to the control process, which has bound `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        if endpoint.startswith("tcp:"):
            self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)

    def receive(self) -> ToWorker:
        """Waits for the next message. Raises ProtocolError."""
        return decode_to_worker(self._socket.recv_multipart())

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
        self._context.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
