"""The client of a worker in another process: the one that `pie serve` uses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from pie_control.errors import WorkerUnavailable
from pie_inference.protocol import (
    PROTOCOL_VERSION,
    AdapterLoaded,
    DropAdapter,
    FromWorker,
    Hello,
    LoadAdapter,
    ProtocolError,
    Ready,
    Refused,
    RunWave,
    Shutdown,
    WaveDone,
    WorkerFailed,
    decode_from_worker,
    encode,
)

from ..children.process import ChildProcess
from .connection import Connection
from .interface import ignore_loss, ignore_wave
from .local import LocalConnection
from .process import WORKER, start_worker
from .wave_watch import WaveWatch

ANOTHER_SERVES = Refused("another worker is connected to the control process already: each needs its own endpoint")
START_SECONDS = 300.0  # without a sign of life; a worker that loads a large model tells its progress
LAST_WORDS_SECONDS = 0.3  # in which the message of a worker that has ended may still arrive
SHUTDOWN_SECONDS = 1.0
ADAPTER_SECONDS = 120.0  # for reading an adapter, behind the waves that were sent
WAVE_SECONDS = 300.0  # far beyond any wave, and beyond a kernel that is compiled at its first use


class WorkerClient:
    """Starts a worker process and speaks to it, or waits for one that is started elsewhere. Implements
    `InferenceClient`.

    With `arguments`, the options of `python -m MODULE` beside --endpoint, it launches the worker and owns it; they
    speak over a pair of sockets. With `endpoint`, it binds that address of ZeroMQ (such as "tcp://0.0.0.0:8012") for a
    worker on another machine. Both then know `secret`, 32 random characters at least; the worker finds it in
    $PIE_WORKER_SECRET. The first worker that connects is taken. Others, and processes that do not know the secret, are
    refused.
    `poll_us`: microseconds after a wave was sent in which this process looks for the answer and does not sleep.
    A worker that leaves waves unanswered for `wave_seconds` counts as lost; 0: it never does.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        *,
        module: str = WORKER,
        endpoint: str | None = None,
        secret: str | None = None,
        start_seconds: float = START_SECONDS,
        wave_seconds: float = WAVE_SECONDS,
        poll_us: int = 0,
    ) -> None:
        if bool(arguments) == (endpoint is not None):
            raise ValueError("give either arguments of a worker to launch or the endpoint of one that will connect")
        if (endpoint is None) != (secret is None):
            raise ValueError("an endpoint, which others may reach, needs a secret that the worker knows as well")
        self.on_wave_done: Callable[[WaveDone], None] = ignore_wave
        self.on_lost: Callable[[str], None] = ignore_loss
        self._module = module
        self._arguments = tuple(arguments)
        self._endpoint = endpoint
        self._secret = secret
        self._start_seconds = start_seconds
        self._wave_seconds = wave_seconds
        self._poll_us = poll_us
        self._watch: WaveWatch | None = None
        self._connection: Connection | None = None
        self._process: ChildProcess | None = None
        self._starting: asyncio.Future[Ready] | None = None
        self._serving = False
        self._adapters: dict[int, asyncio.Future[AdapterLoaded]] = {}  # that are being loaded

    async def start(self) -> Ready:
        if self._connection is not None:
            raise WorkerUnavailable("the worker is already started")
        self._starting = asyncio.get_running_loop().create_future()
        try:
            self._connection = self._launch() if self._endpoint is None else self._bind(self._endpoint)
            self._connection.send(encode(Hello(PROTOCOL_VERSION)))
            ready = await self._wait_until_ready(self._starting)
        except BaseException as error:
            await self._tear_down(0.0)
            if isinstance(error, TimeoutError):
                raise WorkerUnavailable(f"no worker was ready within {self._start_seconds:g} s") from None
            if isinstance(error, OSError | ValueError):
                raise WorkerUnavailable(f"the worker could not be started: {error}") from error
            raise
        self._starting = None
        self._serving = True
        self._watch = WaveWatch(self._wave_seconds, self._silent)
        return ready

    def _launch(self) -> Connection:
        """Starts the worker with the other end of a new pair of sockets."""
        ours, theirs = socket.socketpair()
        connection = LocalConnection(ours, self._receive, self._disconnected, self._poll_us)
        try:
            with theirs:
                self._process = start_worker(self._module, self._arguments, theirs.fileno(), self._process_ended)
        except BaseException:
            connection.close()
            raise
        return connection

    def _bind(self, endpoint: str) -> Connection:
        """Waits at an address for the worker."""
        from .zeromq import ZeroMQConnection

        refusal = encode(ANOTHER_SERVES)
        return ZeroMQConnection(endpoint, self._secret, refusal, self._receive, self._disconnected, self._poll_us)

    async def _wait_until_ready(self, starting: asyncio.Future[Ready]) -> Ready:
        """Raises TimeoutError once the worker has been silent for the time to start."""
        patience = self._start_seconds
        while True:
            try:
                return await asyncio.wait_for(asyncio.shield(starting), patience)
            except TimeoutError:
                patience = self._start_seconds - (self._process.silent_seconds if self._process else patience)
                if patience <= 0:
                    raise

    def send(self, wave: RunWave) -> None:
        if self._connection is None or self._watch is None or not self._serving:
            raise WorkerUnavailable("the worker is not running")
        self._watch.sent()
        self._connection.send(encode(wave))

    async def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        if self._connection is None or not self._serving:
            raise WorkerUnavailable("the worker is not running")
        answer = self._adapters[message.number] = asyncio.get_running_loop().create_future()
        self._connection.send(encode(message))
        try:
            return await asyncio.wait_for(answer, ADAPTER_SECONDS)
        except TimeoutError:
            raise WorkerUnavailable(f"the worker did not load the adapter within {ADAPTER_SECONDS:g} s") from None
        finally:
            del self._adapters[message.number]

    def drop_adapter(self, message: DropAdapter) -> None:
        if self._connection is not None and self._serving:
            self._connection.send(encode(message))

    async def restart(self) -> Ready:
        await self.close()
        return await self.start()

    async def close(self) -> None:
        patience = 0.0
        if self._connection is not None and self._serving:
            self._connection.send(encode(Shutdown()))
            patience = SHUTDOWN_SECONDS
        self._serving = False
        await self._tear_down(patience)

    async def _tear_down(self, patience: float) -> None:
        self._end_adapters("the worker was ended")
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        process, self._process = self._process, None
        if process is not None:
            await process.end(patience)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _receive(self, frames: Sequence[bytes | memoryview]) -> None:
        try:
            message = decode_from_worker(frames)
        except ProtocolError as error:
            self._disconnected(str(error))
        else:
            self._take(message)

    def _take(self, message: FromWorker) -> None:
        match message:
            case WaveDone() if self._watch is not None:
                self._watch.answered()
                self.on_wave_done(message)
            case Ready() if self._starting is not None and not self._starting.done():
                self._starting.set_result(message)
            case AdapterLoaded(number) if number in self._adapters and not self._adapters[number].done():
                self._adapters[number].set_result(message)
            case WorkerFailed(reason):
                self._lose(reason)

    def _process_ended(self) -> None:
        """Its last message may still be on its way, and says more than its exit status."""
        asyncio.get_running_loop().call_later(
            LAST_WORDS_SECONDS if self._starting else 0, self._tell_end, self._process
        )

    def _tell_end(self, process: ChildProcess | None) -> None:
        if process is not None and process is self._process:
            self._lose(f"the worker {process.describe_end()}")

    def _disconnected(self, wrong: str | None) -> None:
        """The end of a child tells more than that of its connection, and should follow at once."""
        if wrong is not None:
            self._lose(f"the worker sent something that is no message: {wrong}")
            return
        patience = LAST_WORDS_SECONDS if self._process is not None else 0.0
        asyncio.get_running_loop().call_later(patience, self._tell_disconnection, self._connection)

    def _tell_disconnection(self, connection: Connection | None) -> None:
        if connection is None or connection is not self._connection:
            return
        if self._process is not None and not self._process.runs:
            self._tell_end(self._process)
        else:
            self._lose("the connection to the worker was lost")

    def _silent(self) -> None:
        self._lose(f"the worker did not answer for {self._wave_seconds:g} s and is ended (--wave-timeout)")

    def _lose(self, reason: str) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.set_exception(WorkerUnavailable(reason))
        elif self._serving:
            self._serving = False
            self._end_adapters(reason)
            self.on_lost(reason)

    def _end_adapters(self, reason: str) -> None:
        """Nobody answers who is asked to load one."""
        for answer in self._adapters.values():
            if not answer.done():
                answer.set_exception(WorkerUnavailable(reason))
