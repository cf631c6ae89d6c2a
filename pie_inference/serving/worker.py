"""The inference worker: receives waves, runs their batches in order, replies (paper, sections 5.3 and 6.2).

While a wave runs on a GPU, the next one is received and launched behind it; replies go out in the order of the waves.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..config import Options, WorkerConfig, parse_options
from ..device.threads import default_threads, threads_of_rank
from ..errors import InferenceError
from ..protocol import (
    PROTOCOL_VERSION,
    Batch,
    Failure,
    Hello,
    ModelDescription,
    ProtocolError,
    Ready,
    RunWave,
    Shutdown,
    ToWorker,
    WaveDone,
    WorkerFailed,
)
from . import lifetime
from .transport import Transport

if TYPE_CHECKING:
    from ..device.ranks import Ranks
    from ..execution.launched import LaunchedWave, Outcome
    from ..tensor_parallel.group import WorkerGroup

WAVES_IN_FLIGHT = 2
"""One that runs and one behind it: more would only delay what arrives next."""


class Worker:
    """One model on one device, or one rank's share of it. Not thread-safe. Raises InferenceError if it cannot be
    loaded."""

    def __init__(self, config: WorkerConfig, ranks: Ranks | None = None) -> None:
        import torch  # here, so that wrong options and --help answer at once

        from ..execution.launched import LaunchedWave, mark_stream
        from ..execution.served_model import load
        from ..handlers.table import HANDLERS

        self._torch = torch
        self._handlers = HANDLERS
        self._launched, self._mark_stream = LaunchedWave, mark_stream
        self._last_finish = 0.0
        with torch.inference_mode():
            self._served = load(config, ranks)
        threads = config.threads or default_threads(self._served.description.weight_bytes)
        torch.set_num_threads(threads_of_rank(threads, config.tensor_parallel))

    def describe(self) -> tuple[ModelDescription, ...]:
        """The models that `run` accepts."""
        return (self._served.description,)

    def run(self, wave: RunWave) -> WaveDone:
        """Launches a wave and waits for its results."""
        return self.finish(self.launch(wave))

    def launch(self, wave: RunWave) -> LaunchedWave:
        """Runs the batches in order, on a GPU without waiting for it. After a failure the rest of the wave answers the
        same and has no effect."""
        started = time.perf_counter()
        outcomes: list[Outcome] = []
        with self._torch.inference_mode():
            for batch in wave.batches:
                failed = bool(outcomes) and isinstance(outcomes[-1], Failure)
                outcomes.append(outcomes[-1] if failed else self._run_batch(wave.model, batch))
            return self._launched(wave.wave, started, tuple(outcomes), self._mark_stream(self._served.device))

    def finish(self, launched: LaunchedWave) -> WaveDone:
        """Waits for a wave's results; waves finish in the order of their launches. Raises RuntimeError where the
        device failed: it is then lost with all it held. `seconds` counts from when the wave before was finished."""
        results = launched.results()
        begun = max(launched.started, self._last_finish)
        self._last_finish = time.perf_counter()
        return WaveDone(launched.wave, results, self._last_finish - begun)

    def _run_batch(self, model: str, batch: Batch) -> Outcome:
        if model != self._served.description.name:
            return Failure(f"this worker serves {self._served.description.name!r}, not {model!r}")
        try:
            return self._handlers[type(batch)](self._served, batch)
        except (InferenceError, RuntimeError, ValueError, IndexError, MemoryError) as error:
            return Failure(f"{type(batch).__name__}: {error}")


@contextmanager
def open_worker(config: WorkerConfig) -> Iterator[Worker | WorkerGroup]:
    """What serves a configuration: a worker of this process, or a group of ranks that it leads. Raises
    InferenceError."""
    if config.tensor_parallel == 1:
        yield Worker(config)
        return
    from ..tensor_parallel.group import WorkerGroup

    with WorkerGroup(config, Worker) as group:
        yield group


def serve(transport: Transport, worker: Worker | WorkerGroup) -> None:
    """Answers messages until `Shutdown`, and then what has been launched."""
    running: deque[LaunchedWave] = deque()
    while not isinstance(message := _next_message(transport, worker, running), Shutdown):
        if isinstance(message, RunWave):
            running.append(worker.launch(message))
        else:
            transport.send(_greet(worker, message))
    for launched in running:
        transport.send(worker.finish(launched))


def _next_message(transport: Transport, worker: Worker | WorkerGroup, running: deque[LaunchedWave]) -> ToWorker:
    """Waits for a message, and meanwhile answers waves that are done. It polls, as waiting for a GPU does anyway: a
    sleep would be long beside a wave."""
    while running:
        if len(running) == WAVES_IN_FLIGHT or running[0].is_done:
            transport.send(worker.finish(running.popleft()))
        elif (message := transport.receive_nowait()) is not None:
            return message
    return transport.receive()


def _greet(worker: Worker | WorkerGroup, message: ToWorker) -> Ready:
    if isinstance(message, Hello) and message.protocol == PROTOCOL_VERSION:
        return Ready(PROTOCOL_VERSION, os.getpid(), worker.describe())
    raise ProtocolError(f"the worker speaks protocol {PROTOCOL_VERSION}, the control process sent {message}")


def run(options: Options) -> int:
    """Serves until `Shutdown`; 0, or 1 with a `WorkerFailed` sent and the reason on stderr."""
    with Transport(options.endpoint) as transport:
        try:
            with open_worker(options.config) as worker:
                serve(transport, worker)
        except (InferenceError, ProtocolError, MemoryError, RuntimeError) as error:
            transport.send(WorkerFailed(str(error)))
            print(error, file=sys.stderr)
            return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m pie_inference.serving`."""
    lifetime.ignore_interrupts()
    try:
        options = parse_options(arguments)
    except InferenceError as error:
        print(error, file=sys.stderr)
        return 2
    if options.parent is not None:
        lifetime.die_with(options.parent)
    return run(options)
