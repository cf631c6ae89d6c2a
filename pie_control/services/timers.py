"""Timers of inferlets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Timers:
    """Calls back on the thread of the running event loop."""

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls back at a time of the monotonic clock."""
        delay = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        return asyncio.get_running_loop().call_later(delay, callback)
