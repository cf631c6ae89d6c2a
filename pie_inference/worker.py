"""The inference worker: receives waves, runs their batches in order, replies (paper, sections 5.3 and 6.2)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from . import lifetime
from .config import Options, WorkerConfig, parse_options
from .errors import InferenceError
from .protocol import (
    PROTOCOL_VERSION,
    Batch,
    Failure,
    Hello,
    ModelDescription,
    ProtocolError,
    Ready,
    Result,
    RunWave,
    Shutdown,
    ToWorker,
    WaveDone,
    WorkerFailed,
)
from .threads import default_threads
from .transport import Transport


class Worker:
    """One model on one device. Not thread-safe: one wave at a time. Raises InferenceError if it cannot be loaded."""

    def __init__(self, config: WorkerConfig) -> None:
        import torch  # here, so that wrong options and --help answer at once

        from .handlers.table import HANDLERS
        from .served_model import load

        self._torch = torch
        self._handlers = HANDLERS
        with torch.inference_mode():
            self._served = load(config)
        torch.set_num_threads(config.threads or default_threads(self._served.description.weight_bytes))

    def describe(self) -> tuple[ModelDescription, ...]:
        """The models that `run` accepts."""
        return (self._served.description,)

    def run(self, wave: RunWave) -> WaveDone:
        """Runs the batches in order. After a failure the rest of the wave answers the same and has no effect."""
        started = time.perf_counter()
        results: list[Result] = []
        with self._torch.inference_mode():
            for batch in wave.batches:
                failed = bool(results) and isinstance(results[-1], Failure)
                results.append(results[-1] if failed else self._run_batch(wave.model, batch))
        return WaveDone(wave.wave, tuple(results), time.perf_counter() - started)

    def _run_batch(self, model: str, batch: Batch) -> Result:
        if model != self._served.description.name:
            return Failure(f"this worker serves {self._served.description.name!r}, not {model!r}")
        try:
            return self._handlers[type(batch)](self._served, batch)
        except (InferenceError, RuntimeError, ValueError, IndexError, MemoryError) as error:
            return Failure(f"{type(batch).__name__}: {error}")


def serve(transport: Transport, worker: Worker) -> None:
    """Answers messages until `Shutdown`."""
    while not isinstance(message := transport.receive(), Shutdown):
        transport.send(_answer(worker, message))


def _answer(worker: Worker, message: ToWorker) -> Ready | WaveDone:
    if isinstance(message, RunWave):
        return worker.run(message)
    if isinstance(message, Hello) and message.protocol == PROTOCOL_VERSION:
        return Ready(PROTOCOL_VERSION, os.getpid(), worker.describe())
    raise ProtocolError(f"the worker speaks protocol {PROTOCOL_VERSION}, the control process sent {message}")


def run(options: Options) -> int:
    """Serves until `Shutdown`; 0, or 1 with a `WorkerFailed` sent and the reason on stderr."""
    with Transport(options.endpoint) as transport:
        try:
            serve(transport, Worker(options.config))
        except (InferenceError, ProtocolError, MemoryError, RuntimeError) as error:
            transport.send(WorkerFailed(str(error)))
            print(error, file=sys.stderr)
            return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m pie_inference.worker`."""
    lifetime.ignore_interrupts()
    try:
        options = parse_options(arguments)
    except InferenceError as error:
        print(error, file=sys.stderr)
        return 2
    if options.parent is not None:
        lifetime.die_with(options.parent)
    return run(options)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # taking torch down in order would take a third of a second for nothing
