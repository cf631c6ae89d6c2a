"""A host in the control process, over the same messages: they are passed on as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .messages import FromHost, HostReady, ToHost, Welcome

if TYPE_CHECKING:
    from .host import Host, MakePrograms


class LocalLink:
    """A `HostLink`. A frame is taken before `send` returns, and answered, unless the answer waits for inferlets."""

    on_messages: Callable[[Sequence[FromHost]], None]
    on_lost: Callable[[str], None]

    def __init__(self, make_programs: MakePrograms | None = None) -> None:
        """`make_programs`: makes what runs programs in place of the sandbox."""
        self._make_programs = make_programs
        self._end = _HostEnd(self)
        self._host: Host | None = None

    async def start(self) -> HostReady:
        return HostReady("", os.getpid())

    def send(self, messages: Sequence[ToHost]) -> None:
        """The host begins with the first message. Raises ConfigError if it cannot."""
        if self._host is None:
            from .host import Host  # with wasmtime, which a process without a host need not load

            welcome, *messages = messages
            assert isinstance(welcome, Welcome), "the first message to a host is a Welcome"
            given = [] if self._make_programs is None else [self._make_programs]
            self._host = Host(welcome, self._end, *given)
        self._end.on_messages(messages)

    def distrust(self, reason: str) -> None:
        """It goes on: what it says is what this process says."""

    async def close(self) -> None:
        if self._host is not None:
            self._host.close()


class _HostEnd:
    """The `ControlLink` of the host."""

    on_messages: Callable[[Sequence[ToHost]], None]
    on_pause: Callable[[], None] | None = None
    unsent = 0

    def __init__(self, link: LocalLink) -> None:
        self._link = link

    def send(self, messages: Sequence[FromHost]) -> None:
        self._link.on_messages(messages)
