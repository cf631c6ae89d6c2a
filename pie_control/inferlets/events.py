"""What the client that launched an inferlet hears of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """The inferlet called `send`."""

    text: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of `stdout`, `stderr` or `log`. `time` is in seconds since the epoch."""

    time: float
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `status` is a terminal `Status`; `result` is the JSON text given to `set_result`."""

    status: str
    result: str | None
    error: str | None


Event = Message | LogLine | Ended
