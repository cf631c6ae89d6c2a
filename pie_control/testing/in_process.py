"""A worker inside the control process: for tests, closed-loop benchmarks and debugging."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pie_control.errors import WorkerUnavailable
from pie_inference.protocol import PROTOCOL_VERSION, AdapterLoaded, DropAdapter, LoadAdapter, Ready, RunWave, WaveDone

from ..inference_client.interface import ModelRunner


class InProcessClient:
    """Runs waves on `model`, in order, on a thread of its own, or on the loop's thread when `inline`.

    Implements `InferenceClient`. `restart` keeps the model and its pools: there is no process to lose.
    """

    def __init__(self, model: ModelRunner, *, inline: bool = False) -> None:
        self.on_wave_done: Callable[[WaveDone], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        self._model = model
        self._inline = inline
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._epoch = 0

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self._model.describe()[0].name

    async def start(self) -> Ready:
        self._loop = asyncio.get_running_loop()
        if not self._inline:
            self._thread = ThreadPoolExecutor(1, "worker")
        return Ready(PROTOCOL_VERSION, os.getpid(), self._model.describe())

    def send(self, wave: RunWave) -> None:
        if self._loop is None:
            raise WorkerUnavailable("the worker is not started, or closed")
        if self._thread is None:
            self._loop.call_soon(self._run_inline, wave, self._epoch)
        else:
            self._thread.submit(self._run_on_thread, wave, self._loop, self._epoch)

    async def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        if self._loop is None:
            raise WorkerUnavailable("the worker is not started, or closed")
        if self._thread is None:
            return self._model.load_adapter(message)
        return await self._loop.run_in_executor(self._thread, self._model.load_adapter, message)

    def drop_adapter(self, message: DropAdapter) -> None:
        if self._loop is not None and self._thread is None:
            self._loop.call_soon(self._model.drop_adapter, message)
        elif self._thread is not None:
            self._thread.submit(self._model.drop_adapter, message)

    async def restart(self) -> Ready:
        await self.close()
        return await self.start()

    async def close(self) -> None:
        self._loop = None
        self._epoch += 1
        if self._thread is not None:
            self._thread.shutdown(True, cancel_futures=True)  # not on another thread: at the end of Python none begins
            self._thread = None

    def _run_inline(self, wave: RunWave, epoch: int) -> None:
        if epoch == self._epoch:
            self._outcome(wave, epoch)()

    def _run_on_thread(self, wave: RunWave, loop: asyncio.AbstractEventLoop, epoch: int) -> None:
        loop.call_soon_threadsafe(self._outcome(wave, epoch))

    def _outcome(self, wave: RunWave, epoch: int) -> Callable[[], None]:
        """Runs a wave; what is then to do on the loop's thread."""
        try:
            return partial(self._deliver, self._model.run(wave), epoch)
        except Exception as error:
            return partial(self._lose, f"{type(error).__name__}: {error}", epoch)

    def _deliver(self, done: WaveDone, epoch: int) -> None:
        if epoch == self._epoch:
            self.on_wave_done(done)

    def _lose(self, reason: str, epoch: int) -> None:
        if epoch == self._epoch:
            self._epoch += 1
            self._loop = None
            self.on_lost(reason)
