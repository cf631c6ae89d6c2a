"""A peer in its own process, so that its threads and its memory are separate and end with it."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..generation import Prompts
from .interface import Peer, PeerRun

TRIAL_TOKENS = 4

_loaded: list[Peer] = []  # in the peer's process


class PeerProcess:
    """A loaded peer in its process."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    async def choose(self, prompts: Prompts) -> str:
        """Finds the fastest setting in a short trial."""
        runs: list[PeerRun] = await _call(self._pool, _try_settings, prompts)
        return min(runs, key=lambda run: run.seconds_per_token).setting

    async def generate(self, setting: str, prompts: Prompts, count: int) -> PeerRun:
        """Like `Peer.generate`."""
        run: PeerRun = await _call(self._pool, _generate, setting, prompts, count)
        return run


@asynccontextmanager
async def running(module: str, checkpoint: Path, threads: int) -> AsyncIterator[PeerProcess]:
    """Starts the peer of a module in this package. Raises ImportError if it is not installed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        await _call(pool, _load, module, checkpoint, threads)
        yield PeerProcess(pool)


async def _call(pool: ProcessPoolExecutor, function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _load(module: str, checkpoint: Path, threads: int) -> None:
    _loaded.append(import_module(f"{__package__}.{module}").load(checkpoint, threads))


def _try_settings(prompts: Prompts) -> list[PeerRun]:
    (peer,) = _loaded
    return [peer.generate(setting, prompts, TRIAL_TOKENS) for setting in peer.settings]


def _generate(setting: str, prompts: Prompts, count: int) -> PeerRun:
    (peer,) = _loaded
    return peer.generate(setting, prompts, count)
