"""The worker's end of the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..protocol import FromWorker, ToWorker
from ..protocol.frames import DESCRIPTOR


class Transport(Protocol):
    """A connection to the control process. Before it sleeps, it looks for a message for a given time, which takes a
    core and saves the time to wake up."""

    def await_control(self) -> ToWorker:
        """Waits for the first message. Raises ProtocolError if the control process does not want this worker, or does
        not share its secret."""

    def receive(self) -> ToWorker:
        """Waits for the next message. Raises ProtocolError."""

    def receive_nowait(self) -> ToWorker | None:
        """The next message; None if there is none. Raises ProtocolError."""

    def send(self, message: FromWorker) -> None:
        """Sends a message. Nothing happens if the control process has ended."""

    def close(self) -> None:
        """Closes the connection. What was sent arrives."""


@contextmanager
def open_transport(endpoint: str, secret: str | None = None, poll_us: int = 0) -> Iterator[Transport]:
    """Connects to the control process: by a socket that it has handed over (fd:NUMBER), or by an address of ZeroMQ,
    with the secret if there is one. `poll_us`: microseconds to look for a message before it sleeps. Raises
    ProtocolError for a secret or an endpoint that is none."""
    transport: Transport
    if endpoint.startswith(DESCRIPTOR):
        from .local import LocalTransport

        transport = LocalTransport(endpoint, poll_us)
    else:
        from .zeromq import ZeroMQTransport  # which starts threads

        transport = ZeroMQTransport(endpoint, secret, poll_us)
    try:
        yield transport
    finally:
        transport.close()
