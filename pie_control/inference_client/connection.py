"""The way of messages to one worker and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pie_inference.protocol import Ready

OnFrames = Callable[[Sequence[bytes | memoryview]], None]
OnLost = Callable[[str], None]


class Connection(Protocol):
    """To one worker. All of it belongs to the loop in which it is made."""

    def send(self, frames: list[bytes]) -> None:
        """Sends the frames of a message now, or as soon as can be. Never calls back from within."""

    def close(self) -> None:
        """Nothing is heard any more. Idempotent."""


class Connector(Protocol):
    """How a client comes to its worker: it starts one, or reaches one that others have started. `open` may be called
    again after `leave`."""

    server: str
    """What a client says to be told from those of other servers."""

    def open(self, on_frames: OnFrames, on_lost: OnLost) -> Connection:
        """Starts the worker, or begins to reach it. `on_frames` hears each message; `on_lost` that it has gone or
        cannot be reached, and why. Raises OSError, ValueError."""

    @property
    def patience(self) -> float:
        """Seconds for which a worker that is not ready is still waited for."""

    def is_told(self, progress: str) -> None:
        """A worker that is not ready says how far it has come."""

    def gives_up(self) -> str:
        """What is told when they are over."""

    def why_not(self, ready: Ready) -> str | None:
        """What is wrong with a worker that is ready; None: nothing, it serves from now on."""

    async def leave(self, seconds: float) -> None:
        """The worker is not needed any more. One that was started here has some seconds to end by itself."""
