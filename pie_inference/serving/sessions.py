"""Whom a worker serves: the control process that has started it, or one server after the other that comes to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, redirect_stderr
from typing import TYPE_CHECKING, Protocol, TypeVar

from .. import protocol as wire
from ..config import Place
from ..errors import InferenceError
from ..loading.progress import ProgressLines
from .local import LocalTransport

if TYPE_CHECKING:
    from .zeromq import Listener


class Transport(Protocol):
    """A connection to the control process."""

    def receive(self) -> wire.ToWorker:
        """Waits for the next message; the end of the control process is a `Shutdown`. Raises ProtocolError."""

    def receive_nowait(self) -> wire.ToWorker | None:
        """The next message; None if there is none. Raises ProtocolError."""

    def send(self, message: wire.FromWorker) -> None:
        """Sends a message. Nothing happens if the control process has ended."""


class Servant(Protocol):
    """What serves: `execution.interface.ServedWorker`, or what stands in for one."""

    def describe(self) -> tuple[wire.ModelDescription, ...]:
        """The models that waves may name."""

    def forget(self) -> None:
        """Forgets what the control process that has gone has left: adapters and matchers."""


S = TypeVar("S", bound=Servant)
Open = Callable[[], AbstractContextManager[S]]
Serve = Callable[[Transport, S], None]
FAULTS = (InferenceError, wire.ProtocolError, MemoryError, RuntimeError)


def run(place: Place, open_worker: Open[S], serve: Serve[S]) -> int:
    """Serves until the control process that has started the worker wants no more, or else for ever. `open_worker` loads
    the model; `serve` answers one control process until its end. Returns 0, or 1 after it has told the control process
    and stderr why the worker cannot serve."""
    try:
        if place.listen is None:
            _serve_parent(place.endpoint, open_worker, serve)
        else:
            _serve_all(place.listen, place.secret, open_worker, serve)
    except FAULTS as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def check(worker: Servant) -> None:
    """Raises InferenceError for a worker that nobody can use."""
    for model in worker.describe():
        if model.lacks_pages:
            raise InferenceError(model.lacks_pages)


def greet(worker: Servant, message: wire.ToWorker) -> wire.Ready:
    """The answer to the first message. Raises ProtocolError."""
    if not isinstance(message, wire.Hello):
        raise wire.ProtocolError(f"the first message to a worker is Hello, not {type(message).__name__}")
    if message.protocol != wire.PROTOCOL_VERSION:
        raise wire.ProtocolError(
            f"the worker speaks version {wire.PROTOCOL_VERSION} of the protocol and the server version "
            f"{message.protocol}: install the same version of Pie on both"
        )
    return wire.Ready(wire.PROTOCOL_VERSION, os.getpid(), worker.describe())


def _serve_parent(endpoint: str, open_worker: Open[S], serve: Serve[S]) -> None:
    with closing(LocalTransport(endpoint)) as transport:
        try:
            hello = transport.receive()  # before the model is loaded, which may be for nothing
            if isinstance(hello, wire.Shutdown):
                return
            with open_worker() as worker:
                transport.send(greet(worker, hello))
                serve(transport, worker)
        except FAULTS as error:
            transport.send(wire.WorkerFailed(str(error)))
            raise


def _serve_all(address: str, secret: str | None, open_worker: Open[S], serve: Serve[S]) -> None:
    from .zeromq import Listener  # which starts threads

    with closing(Listener(address, secret)) as listener:
        try:
            listener.tell(f"listens at {listener.address} and loads its model")
            with ExitStack() as opened:
                with redirect_stderr(ProgressLines(sys.stderr, listener.loads)):
                    worker = opened.enter_context(open_worker())
                check(worker)
                names = ", ".join(model.name for model in worker.describe())
                listener.tell(f"is ready: serves model {names} to the server that connects to {listener.address}")
                while True:
                    _serve_next(listener, worker, serve)
                    worker.forget()
        except FAULTS as error:
            listener.fail(str(error))
            raise


def _serve_next(listener: Listener, worker: S, serve: Serve[S]) -> None:
    """One server, from its first message to its end. What it does wrong ends only its own connection."""
    hello = listener.accept()
    try:
        listener.send(greet(worker, hello))
        listener.tell(f"serves the server at {listener.peer}")
        serve(listener, worker)
        listener.tell(f"the server at {listener.peer} has gone; waits for the next one")
    except wire.ProtocolError as error:
        listener.send(wire.WorkerFailed(str(error)))
        listener.tell(f"the server at {listener.peer} is not served: {error}")
