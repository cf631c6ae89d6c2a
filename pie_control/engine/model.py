"""A model as the control layer serves it: its scheduler, its tokenizer, and the worker that runs its waves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from pie_inference.protocol import ModelDescription, Ready, WaveDone

from ..errors import CallError, WorkerError, WorkerUnavailable
from ..inference_client.interface import InferenceClient
from ..scheduling import Account, Completion, Scheduler, SchedulerStatistics
from ..services.tokenizer import Tokenizer

MAX_RESTARTS = 5
RESTART_WINDOW_SECONDS = 60.0
"""A worker that dies more often than MAX_RESTARTS in this time stays down."""


@dataclass(frozen=True)
class Watcher:
    """Whom a model tells what happened."""

    on_completion: Callable[[Completion], None]  # an answer for an inferlet
    on_eviction: Callable[[int, str], None]  # end this inferlet: others need its pages
    on_lost: Callable[[str, str], None]  # model, reason: its inferlets have lost their KV cache
    on_progress: Callable[[], None]  # answers were delivered: let inferlets run


class Model:
    """A model and its worker. `dispatch` sends what the scheduler finds worth sending."""

    def __init__(
        self,
        client: InferenceClient,
        make_scheduler: Callable[[ModelDescription], Scheduler],
        watcher: Watcher,
    ) -> None:
        self._client = client
        self._make_scheduler = make_scheduler
        self._watcher = watcher
        self._serving = asyncio.Event()
        self._down: str | None = None
        self._restart: asyncio.Task[None] | None = None
        self._losses: list[float] = []
        self._timer: asyncio.TimerHandle | None = None
        self.restarts = 0
        self.description: ModelDescription
        self.scheduler: Scheduler
        self.tokenizer: Tokenizer
        client.on_wave_done = self._on_wave_done
        client.on_lost = self._on_lost

    @property
    def name(self) -> str:
        return self.description.name

    async def start(self) -> None:
        """Waits for the worker; raises WorkerUnavailable."""
        self._take_over(await self._client.start())
        found = self.description
        self.tokenizer = Tokenizer(found.tokenizer, found.tokenizer_config, found.vocab_size)

    def _take_over(self, ready: Ready) -> None:
        self.description = ready.models[0]
        self.scheduler = self._make_scheduler(self.description)
        self._serving.set()

    async def serving(self) -> None:
        """Waits until the worker serves; raises WorkerUnavailable if it stays down."""
        await self._serving.wait()
        if self._down is not None:
            raise WorkerUnavailable(self._down)

    def open(self, owner: int, created: float) -> Account:
        """What a new inferlet holds at this model; raises WorkerError while the worker is away."""
        if not self._serving.is_set() or self._down is not None:
            raise WorkerError(self._down or f"the worker of model {self.name} is restarting: try again in a moment")
        return self.scheduler.open(owner, created)

    def close_account(self, account: Account, reason: CallError) -> None:
        """Frees what an inferlet held; its futures are nobody's any more."""
        self.scheduler.close(account, reason)

    # ---- waves ----

    def dispatch(self) -> None:
        """Sends waves as long as the scheduler has one to send. Called when all inferlets wait."""
        if not self._serving.is_set() or self._down is not None:
            return
        while True:
            now = time.monotonic()
            wave = self.scheduler.next_wave(now)
            for completion in self.scheduler.take_completions():
                self._watcher.on_completion(completion)
            evictions = self.scheduler.take_evictions()
            for eviction in evictions:
                self._watcher.on_eviction(eviction.owner, eviction.message)
            if wave is not None:
                self._client.send(wave)
            elif not evictions:
                break
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.scheduler.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now), self.dispatch)

    def _on_wave_done(self, done: WaveDone) -> None:
        try:
            completions = self.scheduler.wave_done(done, time.monotonic())
        except WorkerError as error:
            self._on_lost(str(error))
            return
        for completion in completions:
            self._watcher.on_completion(completion)
        self._watcher.on_progress()

    # ---- losing the worker ----

    def _on_lost(self, reason: str) -> None:
        self._serving.clear()
        self._watcher.on_lost(self.name, reason)
        self.scheduler.worker_lost(reason)
        now = time.monotonic()
        self._losses = [*(at for at in self._losses if at > now - RESTART_WINDOW_SECONDS), now]
        if len(self._losses) > MAX_RESTARTS:
            self._give_up(f"the worker died {len(self._losses)} times in a minute and stays down: {reason}")
        else:
            self._restart = asyncio.get_running_loop().create_task(self._restart_worker())

    async def _restart_worker(self) -> None:
        try:
            self._take_over(await self._client.restart())
            self.restarts += 1
        except WorkerUnavailable as error:
            self._give_up(str(error))
        except Exception as error:  # nobody awaits this task: launches would wait for ever
            self._give_up(f"the worker did not restart: {error!r}")

    def _give_up(self, reason: str) -> None:
        self._down = reason
        self._serving.set()

    def statistics(self) -> SchedulerStatistics:
        return self.scheduler.statistics()

    async def close(self) -> None:
        """Ends the worker. Idempotent."""
        for pending in (self._restart, self._timer):
            if pending is not None:
                pending.cancel()
        await self._client.close()
