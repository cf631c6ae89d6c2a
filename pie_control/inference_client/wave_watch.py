"""Notices a worker that lives but does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WaveWatch:
    """Calls `on_silence` once where waves are out and none has been answered for `seconds`; 0: never.

    A wave costs two additions: the timer runs on and looks at them when it fires. Belongs to the thread of the loop in
    which it is made.
    """

    def __init__(self, seconds: float, on_silence: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._on_silence = on_silence
        self._out = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def sent(self) -> None:
        """A wave is on its way."""
        if self._out == 0:
            self._since = self._loop.time()
        self._out += 1
        if self._timer is None and self._seconds > 0:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def answered(self) -> None:
        """One has come back."""
        self._out -= 1
        self._since = self._loop.time()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._out == 0:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._on_silence()
