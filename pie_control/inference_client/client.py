"""The client of a worker in another process: the one that `pie serve` uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto

from pie_control.errors import WorkerUnavailable
from pie_inference import protocol as wire

from .connection import Connection, Connector
from .wave_watch import WaveWatch

SHUTDOWN_SECONDS = 1.0
ADAPTER_SECONDS = 400.0  # behind the waves that were sent, a worker reads an adapter for 300 s at most, and says so
WAVE_SECONDS = 300.0  # far beyond any wave, and beyond a kernel that is compiled at its first use


class State(Enum):
    """Where a client is with its worker."""

    AWAY = auto()
    STARTING = auto()
    SERVING = auto()
    LOST = auto()  # and not torn down yet


TRANSITIONS: dict[State, frozenset[State]] = {
    State.AWAY: frozenset({State.STARTING}),
    State.STARTING: frozenset({State.SERVING, State.AWAY}),
    State.SERVING: frozenset({State.LOST, State.AWAY}),
    State.LOST: frozenset({State.AWAY}),
}


class WorkerClient:
    """Reaches a worker by a `Connector` and speaks to it. Implements `InferenceClient`. A worker that leaves waves
    unanswered for `wave_seconds` counts as lost; 0: it never does."""

    def __init__(self, connector: Connector, wave_seconds: float = WAVE_SECONDS) -> None:
        self.on_wave_done: Callable[[wire.WaveDone], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        self._connector = connector
        self._wave_seconds = wave_seconds
        self._state = State.AWAY
        self._connection: Connection | None = None
        self._ready: asyncio.Future[wire.Ready] | None = None  # of this start
        self._end = ""  # why it was lost before it served
        self._watch: WaveWatch | None = None
        self._adapters: dict[int, asyncio.Future[wire.AdapterLoaded]] = {}  # that are being loaded

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self._state], f"a client that is {self._state} cannot be {state}"
        self._state = state

    async def start(self) -> wire.Ready:
        if self._state is not State.AWAY:
            raise WorkerUnavailable("the worker is already started")
        self._become(State.STARTING)
        self._end = ""
        self._ready = asyncio.get_running_loop().create_future()
        try:
            self._connection = self._connector.open(self._receive, self._lose)
            self._connection.send(wire.encode(wire.Hello(wire.PROTOCOL_VERSION, self._connector.server)))
            ready = await self._wait_until_ready(self._ready)
            self._check(ready)
            if self._end:
                raise WorkerUnavailable(self._end)
        except BaseException as error:
            self._ready = None  # nobody waits: a last word of the worker would be an exception that nobody takes
            await self._tear_down(0.0)
            if isinstance(error, OSError | ValueError):
                raise WorkerUnavailable(f"the worker could not be started: {error}") from error
            raise
        self._become(State.SERVING)
        self._watch = WaveWatch(self._wave_seconds, self._silent)
        return ready

    async def _wait_until_ready(self, ready: asyncio.Future[wire.Ready]) -> wire.Ready:
        while (patience := self._connector.patience) > 0:
            await asyncio.wait((ready,), timeout=patience)
            if ready.done():
                return ready.result()
        raise WorkerUnavailable(self._connector.gives_up())

    def _check(self, ready: wire.Ready) -> None:
        """Tells a worker that is not wanted, and raises WorkerUnavailable."""
        if wrong := self._connector.why_not(ready):
            self._send(wire.Refused(wrong))
            raise WorkerUnavailable(wrong)

    def _send(
        self,
        message: wire.RunWave | wire.LoadAdapter | wire.DropAdapter | wire.Shutdown | wire.Refused,
    ) -> None:
        assert self._connection is not None
        self._connection.send(wire.encode(message))

    def send(self, wave: wire.RunWave) -> None:
        if self._watch is None or self._state is not State.SERVING:
            raise WorkerUnavailable("the worker is not running")
        self._watch.sent()
        self._send(wave)

    async def load_adapter(self, message: wire.LoadAdapter) -> wire.AdapterLoaded:
        if self._state is not State.SERVING:
            raise WorkerUnavailable("the worker is not running")
        answer = self._adapters[message.number] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            return await asyncio.wait_for(answer, ADAPTER_SECONDS)
        except TimeoutError:
            raise WorkerUnavailable(f"the worker did not load the adapter within {ADAPTER_SECONDS:g} s") from None
        finally:
            del self._adapters[message.number]

    def drop_adapter(self, message: wire.DropAdapter) -> None:
        if self._state is State.SERVING:
            self._send(message)

    async def restart(self) -> wire.Ready:
        await self.close()
        return await self.start()

    async def close(self) -> None:
        patience = 0.0
        if self._state is State.SERVING:
            self._send(wire.Shutdown())
            patience = SHUTDOWN_SECONDS
        await self._tear_down(patience)

    async def _tear_down(self, patience: float) -> None:
        if self._state is not State.AWAY:
            self._become(State.AWAY)
        self._end_adapters("the worker was ended")
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        await self._connector.leave(patience)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _receive(self, frames: Sequence[bytes | memoryview]) -> None:
        try:
            message = wire.decode_from_worker(frames)
        except wire.ProtocolError as error:
            self._lose(f"the worker sent something that is no message: {error}")
        else:
            self._take(message)

    def _take(self, message: wire.FromWorker) -> None:
        match message:
            case wire.WaveDone() if self._watch is not None:
                self._watch.answered()
                self.on_wave_done(message)
            case wire.Loading(progress):
                self._connector.is_told(progress)
            case wire.Ready() if self._ready is not None and not self._ready.done():
                self._ready.set_result(message)
            case wire.AdapterLoaded(number) if number in self._adapters and not self._adapters[number].done():
                self._adapters[number].set_result(message)
            case wire.WorkerFailed(reason):
                self._lose(reason)

    def _silent(self) -> None:
        self._lose(f"the worker did not answer for {self._wave_seconds:g} s and is ended (--wave-timeout)")

    def _lose(self, reason: str) -> None:
        if self._state is State.STARTING:
            self._end = reason
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(WorkerUnavailable(reason))
        elif self._state is State.SERVING:
            self._become(State.LOST)
            self._end_adapters(reason)
            self.on_lost(reason)

    def _end_adapters(self, reason: str) -> None:
        """Nobody answers who is asked to load one."""
        for answer in self._adapters.values():
            if not answer.done():
                answer.set_exception(WorkerUnavailable(reason))
