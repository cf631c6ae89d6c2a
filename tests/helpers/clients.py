"""Talking to an inference client as the control layer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pie_control.inference_client.interface import InferenceClient
from pie_inference.protocol import RunWave, WaveDone
from tests.helpers.guard import HANG_SECONDS


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * HANG_SECONDS))


async def ask(client: InferenceClient, *waves: RunWave) -> list[WaveDone]:
    """Sends all waves at once and waits for their answers."""
    answers: asyncio.Queue[WaveDone] = asyncio.Queue()
    client.on_wave_done = answers.put_nowait
    for wave in waves:
        client.send(wave)
    return [await asyncio.wait_for(answers.get(), HANG_SECONDS) for _ in waves]


def loss_of(client: InferenceClient) -> asyncio.Future[str]:
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    client.on_lost = lost.set_result
    return lost
