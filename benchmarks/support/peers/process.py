"""A peer in its own process, so that its threads and its memory are separate and end with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..generation import Prompts
from ..limited import limited_process
from .interface import Peer, PeerRun

_loaded: list[Peer] = []  # in the peer's process


class PeerProcess:
    """A loaded peer in its process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    async def try_settings(self, prompts: Prompts, count: int, room: int) -> list[PeerRun]:
        """Like `Peer.generate` with each of its settings; those that do not work here are left out."""
        runs: list[PeerRun] = await _call(self._pool, _try_settings, prompts, count, room)
        return runs

    async def features(self) -> str:
        """Like `Peer.features`."""
        features: str = await _call(self._pool, _features)
        return features

    async def generate(self, setting: str, prompts: Prompts, count: int, room: int) -> PeerRun:
        """Like `Peer.generate`."""
        run: PeerRun = await _call(self._pool, _generate, setting, prompts, count, room)
        return run


@asynccontextmanager
async def running(
    module: str, checkpoint: Path, *, form: str, threads: int, compiles: bool, max_isa: str
) -> AsyncIterator[PeerProcess]:
    """Starts the peer of a module in this package (`PeerFactory`); torch keeps to `max_isa` in it. Raises ImportError
    if the peer is not installed."""
    with limited_process(max_isa) as pool:
        await _call(pool, _load, module, checkpoint, form, threads, compiles)
        yield PeerProcess(pool)


async def _call(pool: ProcessPoolExecutor, function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _load(module: str, checkpoint: Path, form: str, threads: int, compiles: bool) -> None:
    _loaded.append(import_module(f"{__package__}.{module}").load(checkpoint, form, threads, compiles))


def _try_settings(prompts: Prompts, count: int, room: int) -> list[PeerRun]:
    (peer,) = _loaded
    runs = []
    for setting in peer.settings:
        try:
            runs.append(peer.generate(setting, prompts, count, room))
        except RuntimeError as error:  # what cannot be compiled raises this, too
            print(f"{setting} is left out: {error}", file=sys.stderr)
    return runs


def _features() -> str:
    (peer,) = _loaded
    return peer.features()


def _generate(setting: str, prompts: Prompts, count: int, room: int) -> PeerRun:
    (peer,) = _loaded
    return peer.generate(setting, prompts, count, room)
