"""The way of messages to one worker and back, and how its end looks for them before it sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

OnFrames = Callable[[Sequence[bytes | memoryview]], None]
OnDisconnected = Callable[[str | None], None]


class Connection(Protocol):
    """To one worker, the first and only one. All of it belongs to the loop in which it is made, with two handlers: for
    the frames of each message, and for the end, with what is wrong if the worker has said what is no message.
    `poll_us`: for so many microseconds after a message was sent, every turn of the loop looks for an answer, and none
    sleeps."""

    def send(self, frames: list[bytes]) -> None:
        """Sends the frames of a message now, or as soon as can be. Never calls back from within."""

    def close(self) -> None:
        """Nothing is heard any more. Idempotent."""


class Polling:
    """Calls `look` with each turn of the loop, for `seconds` from `begin`, or until `stop`."""

    def __init__(self, seconds: float, look: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._look = look
        self._until = 0.0  # by the clock of the loop
        self._soon: asyncio.Handle | None = None

    @property
    def is_on(self) -> bool:
        """Whether the next turn of the loop looks."""
        return self._soon is not None

    def begin(self) -> None:
        self._until = self._loop.time() + self._seconds
        self._soon = self._soon or self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._until = 0.0

    def _turn(self) -> None:
        self._soon = None
        self._look()
        if self._soon is None and self._loop.time() < self._until:
            self._soon = self._loop.call_soon(self._turn)
