"""The link to an application host that the test plays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from pie_control.application.messages import FromHost, HostReady, Ping, Pong, Report, ToHost
from pie_control.errors import HostUnavailable

T = TypeVar("T")


class PlayedHost:
    """Keeps what it was told; answers pings, and else says what the test says."""

    on_messages: Callable[[Sequence[FromHost]], None]
    on_lost: Callable[[str], None]

    def __init__(self) -> None:
        self.told: list[ToHost] = []
        self.memory_bytes = 0
        self.starts = 0
        self.closed = False
        self.fails = ""
        self.mute = False

    async def start(self) -> HostReady:
        if self.fails:
            raise HostUnavailable(self.fails)
        self.starts += 1
        return HostReady("", os.getpid())

    def send(self, messages: Sequence[ToHost]) -> None:
        self.told += messages
        for message in messages:
            if isinstance(message, Ping) and not self.mute:
                self.on_messages([Report(self.memory_bytes, 1.0, 2, 3, 4), Pong(message.token)])

    def distrust(self, reason: str) -> None:
        self.on_lost(reason)

    async def close(self) -> None:
        self.closed = True

    def says(self, *messages: FromHost) -> None:
        """Says a frame."""
        self.on_messages(messages)

    def take(self, kind: type[T]) -> list[T]:
        """What it was told of this kind since the last time."""
        found: list[T] = [message for message in self.told if isinstance(message, kind)]
        self.told = [message for message in self.told if not isinstance(message, kind)]
        return found
