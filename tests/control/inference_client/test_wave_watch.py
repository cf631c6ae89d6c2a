from __future__ import annotations

import asyncio

from pie_control.inference_client.wave_watch import WaveWatch
from tests.helpers.clients import run


def test_waves_that_are_answered_in_time_are_no_silence() -> None:
    async def test() -> None:
        silences: list[str] = []
        watch = WaveWatch(0.5, lambda: silences.append("silence"))
        watch.sent()
        for _ in range(8):
            await asyncio.sleep(0.1)
            watch.sent()
            watch.answered()
        assert not silences
        while not silences:
            await asyncio.sleep(0.01)
        never = WaveWatch(0.0, lambda: silences.append("never"))
        never.sent()
        stopped = WaveWatch(0.01, lambda: silences.append("stopped"))
        stopped.sent()
        stopped.stop()
        await asyncio.sleep(0.05)
        assert silences == ["silence"]

    run(test)
