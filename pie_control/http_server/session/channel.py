"""The way of one inferlet's events to a session."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.inferlets.events import Ended, Event, LogLine
from pie_control.inferlets.inferlet import Inferlet

from .send_buffer import SendBuffer


class Channel:
    """Puts the events of one inferlet into a session's send buffer; keeps them until `bind`, because the client must
    learn the inferlet's id first. `owned`: the inferlet ends with the session. `logs`: log lines are sent too."""

    def __init__(self, buffer: SendBuffer, logs: bool, owned: bool, on_end: Callable[[str], None]) -> None:
        self.inferlet: Inferlet | None = None
        self.owned = owned
        self._early: list[Event] = []
        self._buffer = buffer
        self._logs = logs
        self._on_end = on_end

    def __call__(self, event: Event) -> None:
        if self.inferlet is None:
            self._early.append(event)
            return
        if self._logs or not isinstance(event, LogLine):
            self._buffer.put(event)
        if isinstance(event, Ended):
            self._on_end(event.inferlet)

    def bind(self, inferlet: Inferlet) -> None:
        """Passes on the inferlet's events: first those that came before this call."""
        self.inferlet = inferlet
        early, self._early = self._early, []
        for event in early:
            self(event)

    def close(self) -> None:
        """Leaves further events to the inferlet."""
        if self.inferlet is not None:
            self.inferlet.detach()
