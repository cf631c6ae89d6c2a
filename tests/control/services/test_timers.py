from __future__ import annotations

import asyncio
import time

from pie_control.services.timers import Timers


def test_a_timer_calls_back_unless_it_is_cancelled() -> None:
    async def check() -> None:
        called = list[str]()
        Timers().call_at(time.monotonic_ns() - 1, lambda: called.append("over"))
        Timers().call_at(time.monotonic_ns() - 1, lambda: called.append("cancelled")).cancel()
        Timers().call_at(2**64, lambda: called.append("far")).cancel()
        await asyncio.sleep(0.01)
        assert called == ["over"]

    asyncio.run(check())
