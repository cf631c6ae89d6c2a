"""An inference client that the test plays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import PROTOCOL_VERSION, AdapterLoaded, DropAdapter, LoadAdapter, Ready, RunWave, WaveDone


class PlayedClient:
    """Keeps waves until the test answers them; starts when it may."""

    def __init__(self) -> None:
        self.on_wave_done: Callable[[WaveDone], None]
        self.on_lost: Callable[[str], None]
        self.model = FakeModel()
        self.next_model: Callable[[], FakeModel] = FakeModel
        self.sent: list[RunWave] = []
        self.closed = False
        self.may_restart = asyncio.Event()
        self.fails: Exception | None = None

    def _ready(self) -> Ready:
        return Ready(PROTOCOL_VERSION, os.getpid(), self.model.describe())

    async def start(self) -> Ready:
        return self._ready()

    def send(self, wave: RunWave) -> None:
        self.sent.append(wave)

    async def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        return self.model.load_adapter(message)

    def drop_adapter(self, message: DropAdapter) -> None:
        self.model.drop_adapter(message)

    async def restart(self) -> Ready:
        await self.may_restart.wait()
        if self.fails:
            raise self.fails
        self.model = self.next_model()
        return self._ready()

    async def close(self) -> None:
        self.closed = True

    def answer(self) -> None:
        self.on_wave_done(self.model.run(self.sent.pop(0)))
