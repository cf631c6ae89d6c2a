"""Python's garbage collector in a process that must not stand still.

A full collection looks at every object, and nobody runs meanwhile: for 150 ms, beside inferlets with 100,000 futures.
The server makes hardly any cycles, and collections of young objects find those that do not live long. So full ones are
left out, but for one a minute that waits for a moment in which no inferlet can run. Then the memory of inferlets that
have ended goes back to the system, too.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from pie_inference.options.freed_memory import release_freed

EVERY_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 300.0
"""A server that always computes is collected after this time."""
NEVER = 1 << 30


async def collect_at_leisure(is_idle: Callable[[], bool]) -> None:
    """Takes the full collections over, until it is cancelled. What lives now is not looked at again."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], NEVER)
    try:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            waited = 0.0
            while not is_idle() and waited < LONGEST_WAIT_SECONDS:
                await asyncio.sleep(1)
                waited += 1
            gc.collect()
            if is_idle():
                release_freed()  # 30 ms where 100 MB are scattered
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
