"""A process that uses a state until it is killed. It says on stdout what it would acknowledge to a client."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from pie_control.durable.inferlets import InferletRecord
from pie_control.durable.state import State


async def run(state: State) -> None:
    """Launches and ends inferlets, several at a time."""

    async def one() -> None:
        number = state.inferlets.next_number()
        state.inferlets.launched(number, "default", "ab" * 32, "story", time.time())
        await asyncio.sleep(0)
        print("launched", number, flush=True)
        times = time.time(), "finished", time.time(), 0.0
        record = InferletRecord(number, "default", "ab" * 32, "story", 0, None, *times, f"result {number}", None)
        state.inferlets.ended(record)
        print("ended", number, flush=True)

    async def many() -> None:
        while True:
            await one()

    await asyncio.gather(*(many() for _ in range(8)))


asyncio.run(run(State(Path(sys.argv[1]), 30.0, 1 << 30)))
