"""The events of an inferlet that its client receives. They are also the messages on the wire."""

from __future__ import annotations

import msgspec


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    inferlet: str
    """Id of the inferlet."""


class Message(_Event, frozen=True, tag="message"):
    """The inferlet called `send`."""

    text: str


class LogLine(_Event, frozen=True, tag="log"):
    """A line of `stdout`, `stderr` or `log`. `time` is in seconds since the epoch."""

    time: float
    stream: str
    text: str


class Ended(_Event, frozen=True, tag="ended"):
    """The last event. `status` is a terminal `Status`; `result` is the JSON text given to `set_result`."""

    status: str
    result: str | None = None
    error: str | None = None


Event = Message | LogLine | Ended
