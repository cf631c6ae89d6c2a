"""The worker's loop: receives waves, launches them, replies.

While a wave runs on a GPU, the next one is received and launched behind it; replies go out in the order of the waves.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ..config import ProcessOptions, WorkerConfig
from ..errors import InferenceError
from ..execution.interface import ServedWorker
from ..execution.launched import LaunchedWave
from ..protocol import (
    PROTOCOL_VERSION,
    DropAdapter,
    Hello,
    LoadAdapter,
    ProtocolError,
    Ready,
    RunWave,
    Shutdown,
    ToWorker,
    WorkerFailed,
)
from ..tensor_parallel.group import WorkerGroup
from .transport import Transport, open_transport
from .worker import Worker

WAVES_IN_FLIGHT = 2
"""One wave runs and one waits behind it; more would only delay the next wave to arrive."""


def run(options: ProcessOptions) -> int:
    """Serves until `Shutdown`. Returns 0, or 1 after it has sent `WorkerFailed` and printed the reason on stderr."""
    try:
        with open_transport(options.endpoint, options.secret, options.config.poll_us) as transport:
            try:
                hello = transport.await_control()  # before the model is loaded, which may be for nothing
                if isinstance(hello, Shutdown):
                    return 0
                with open_worker(options.config) as worker:
                    transport.send(_greet(worker, hello))
                    serve(transport, worker)
            except (InferenceError, ProtocolError, MemoryError, RuntimeError) as error:
                transport.send(WorkerFailed(str(error)))
                raise
    except (InferenceError, ProtocolError, MemoryError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


@contextmanager
def open_worker(config: WorkerConfig) -> Iterator[ServedWorker]:
    """The worker for a configuration: in this process, or a group of ranks that it leads. Raises InferenceError."""
    if config.tensor_parallel == 1:
        yield Worker(config)
    else:
        with WorkerGroup(config, Worker) as group:
            yield group


def serve(transport: Transport, worker: ServedWorker) -> None:
    """Answers messages until `Shutdown`, then the waves that are still under way."""
    running: deque[LaunchedWave] = deque()
    while not isinstance(message := _next_message(transport, worker, running), Shutdown):
        match message:
            case RunWave():
                running.append(worker.launch(message))
            case LoadAdapter():
                transport.send(worker.load_adapter(message))
            case DropAdapter():
                worker.drop_adapter(message)
            case _:
                transport.send(_greet(worker, message))
    for launched in running:
        transport.send(worker.finish(launched))


def _next_message(transport: Transport, worker: ServedWorker, running: deque[LaunchedWave]) -> ToWorker:
    """Waits for a message, and meanwhile answers waves that are done. It polls, as waiting for a GPU does anyway,
    because a sleep would be long compared with a wave."""
    while running:
        if len(running) == WAVES_IN_FLIGHT or running[0].is_done:
            transport.send(worker.finish(running.popleft()))
        elif (message := transport.receive_nowait()) is not None:
            return message
    return transport.receive()


def _greet(worker: ServedWorker, message: ToWorker) -> Ready:
    if isinstance(message, Hello) and message.protocol == PROTOCOL_VERSION:
        return Ready(PROTOCOL_VERSION, os.getpid(), worker.describe())
    raise ProtocolError(f"the worker speaks protocol {PROTOCOL_VERSION}, the control process sent {message}")
