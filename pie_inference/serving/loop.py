"""The worker's loop: receives waves, launches them, replies.

While a wave runs on a GPU, the next one is received and launched behind it; replies go out in the order of the waves.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ..config import ProcessOptions, WorkerConfig
from ..device.machine import begin_with_gpu
from ..execution.interface import Load, ServedWorker
from ..execution.launched import LaunchedWave
from ..protocol import AdapterLoaded, DropAdapter, LoadAdapter, RunWave, Shutdown, ToWorker
from ..tensor_parallel.group import WorkerGroup
from . import sessions
from .sessions import Transport
from .worker import Worker

PAUSE_SECONDS = 0.0005
"""Between looks for messages while an adapter is read and no wave runs."""
WAVES_IN_FLIGHT = 2
"""One wave runs and one waits behind it; more would only delay the next wave to arrive."""


def run(options: ProcessOptions) -> int:
    """Serves as `sessions.run` says; returns the exit status."""
    begin_with_gpu(options.first_gpu)
    return sessions.run(options.place, lambda: open_worker(options.config), serve)


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
    loads = _Loads(worker)
    while not isinstance(message := _next_message(transport, worker, running, loads), Shutdown):
        match message:
            case RunWave():
                running.append(worker.launch(message))
            case LoadAdapter():
                loads.begin(message)
            case DropAdapter():
                loads.drop(message)
            case _:
                transport.send(sessions.greet(worker, message))
    for launched in running:
        transport.send(worker.finish(launched))
    while loads.are_left:
        loads.install()  # ranks that have begun to read an adapter wait for this


class _Loads:
    """Adapters that are being loaded, in the order in which they began."""

    def __init__(self, worker: ServedWorker) -> None:
        self._worker = worker
        self._loads: deque[Load] = deque()
        self._dropped: set[int] = set()  # of these

    @property
    def are_left(self) -> bool:
        return bool(self._loads)

    @property
    def is_ready(self) -> bool:
        return bool(self._loads) and self._loads[0].is_ready

    def begin(self, message: LoadAdapter) -> None:
        self._loads.append(self._worker.begin_adapter(message))

    def install(self) -> AdapterLoaded:
        """Installs the first one; it is gone at once if it was dropped meanwhile."""
        loaded = self._loads.popleft().install()
        if loaded.number in self._dropped:
            self._dropped.remove(loaded.number)
            self._worker.drop_adapter(DropAdapter(loaded.number))
        return loaded

    def drop(self, message: DropAdapter) -> None:
        if any(one.number == message.number for one in self._loads):
            self._dropped.add(message.number)
        else:
            self._worker.drop_adapter(message)


def _next_message(transport: Transport, worker: ServedWorker, running: deque[LaunchedWave], loads: _Loads) -> ToWorker:
    """Waits for a message, and meanwhile answers waves that are done, and adapters that have been read. It polls, as
    waiting for a GPU does anyway, because a sleep would be long compared with a wave."""
    while running or loads.are_left:
        if loads.is_ready:
            transport.send(loads.install())
        elif len(running) == WAVES_IN_FLIGHT or (running and running[0].is_done):
            transport.send(worker.finish(running.popleft()))
        elif (message := transport.receive_nowait()) is not None:
            return message
        elif not running:
            time.sleep(PAUSE_SECONDS)
    return transport.receive()
