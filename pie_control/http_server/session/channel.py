"""The way of one inferlet's events to a session."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.inferlets.events import Ended, Event, LogLine
from pie_control.registry.entry import Entry

from .send_buffer import SendBuffer


class Channel:
    """Takes the events of one inferlet when the session has room for them. `owned`: the inferlet ends with the session.
    `logs`: log lines are sent too. `on_end` is called when the last event is taken."""

    def __init__(
        self, inferlet: Entry, buffer: SendBuffer, logs: bool, owned: bool, on_end: Callable[[str], None]
    ) -> None:
        self.inferlet = inferlet
        self.owned = owned
        self._buffer = buffer
        self._logs = logs
        self._on_end = on_end
        self._open = True
        self._is_in_turn = False
        inferlet.outbox.attach(self._notify)

    def _notify(self) -> None:
        if not self._is_in_turn:
            self._is_in_turn = True
            self._buffer.add(self.take)

    def take(self) -> Event | None:
        """The next event that the client wants."""
        while self._open and (event := self.inferlet.outbox.take()) is not None:
            if isinstance(event, Ended):
                self._on_end(event.inferlet)
            if self._logs or not isinstance(event, LogLine):
                return event
        self._is_in_turn = False
        return None

    def close(self) -> None:
        """Leaves further events to the next reader."""
        self._open = False
        self.inferlet.outbox.detach()
