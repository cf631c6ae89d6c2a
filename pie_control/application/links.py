"""The two ends of what carries messages between control and a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .messages import FromHost, HostReady, ToHost


class HostLink(Protocol):
    """A host as control sees it. All methods and callbacks belong to the thread of the event loop in which `start` was
    awaited; a host in this process answers from within `send`. After `on_lost` nothing comes, until `start` is awaited
    again."""

    on_messages: Callable[[Sequence[FromHost]], None]
    """Called with each frame."""
    on_lost: Callable[[str], None]
    """Called at most once after each `start`, with what is known of the reason."""

    async def start(self) -> HostReady:
        """Waits until the host is there. Raises `errors.HostUnavailable` with what it said."""

    def send(self, messages: Sequence[ToHost]) -> None:
        """Hands a frame over without waiting. A host that is gone drops it."""

    def distrust(self, reason: str) -> None:
        """Ends a host that says what cannot be; `on_lost` is called. One in this process is trusted: it goes on."""

    async def close(self) -> None:
        """Ends the host, which has inferlets no more, and frees everything held. Idempotent."""


class ControlLink(Protocol):
    """Control as a host sees it. When it is gone the process ends, so there is no callback for that."""

    on_messages: Callable[[Sequence[ToHost]], None]
    """Called with each frame, on the thread of the event loop; never from within `send`."""
    on_pause: Callable[[], None] | None
    """Called, if it is set, when all frames are taken that have come together. A host in this process does without."""

    @property
    def unsent(self) -> int:
        """Bytes of frames that control has not taken."""

    def send(self, messages: Sequence[FromHost]) -> None:
        """Hands a frame over without waiting."""
