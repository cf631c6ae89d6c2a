"""The way of one inferlet's events to a session."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.inferlets.events import Ended, LogLine
from pie_control.registry.entry import Entry

from ..messages import encode
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

    def take(self, items: list[bytes], most: int) -> int:
        """Adds the next events that the client wants to a frame, up to the one with which they have `most` bytes; how
        many they have. With fewer, none is left."""
        size = 0
        while size < most:
            event = self.inferlet.outbox.take() if self._open else None
            if event is None:
                self._is_in_turn = False
                break
            if type(event) is Ended:
                self._on_end(event.inferlet)
            if self._logs or type(event) is not LogLine:
                items.append(item := encode(event))
                size += len(item)
        return size

    def close(self) -> None:
        """Leaves further events to the next reader."""
        self._open = False
        self.inferlet.outbox.detach()
