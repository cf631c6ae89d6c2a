from __future__ import annotations

import asyncio

import pytest

from pie_control.errors import WorkerUnavailable
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import ModelDescription, RunWave, WaveDone
from tests.helpers.clients import ask, loss_of, run
from tests.helpers.guard import HANG_SECONDS


@pytest.mark.parametrize("inline", [False, True])
def test_waves_are_answered_in_order(inline: bool) -> None:
    async def test() -> None:
        model = FakeModel()
        client = InProcessClient(model, inline=inline)
        assert (await client.start()).models == model.describe()
        answers = await ask(client, *(RunWave(n, "fake", ()) for n in range(20)))
        assert [answer.wave for answer in answers] == list(range(20))
        await client.restart()
        assert (await ask(client, RunWave(7, "fake", ())))[0].wave == 7
        await client.close()
        with pytest.raises(WorkerUnavailable):
            client.send(RunWave(8, "fake", ()))

    run(test)


class Broken(FakeModel):
    def describe(self) -> tuple[ModelDescription, ...]:
        return ()

    def run(self, wave: RunWave) -> WaveDone:
        raise OSError("out of luck")


@pytest.mark.parametrize("inline", [False, True])
def test_a_model_that_raises_is_lost(inline: bool) -> None:
    async def test() -> None:
        client = InProcessClient(Broken(), inline=inline)
        await client.start()
        lost = loss_of(client)
        client.send(RunWave(1, "fake", ()))
        assert "out of luck" in await asyncio.wait_for(lost, HANG_SECONDS)
        await client.close()

    run(test)
