"""Messages of `WS /v1/session`, the connection that many inferlets share. JSON in text frames.

A client sends a request, or a list of them, in one frame. The server answers in frames that hold a list: replies and
events in the order in which they arose; all that arise in one turn of its loop travel in one frame. Each message has a
`type`. A request's `id` is chosen by the client and repeated by its reply, `reply` or `error`. The events of an
inferlet that was launched or attached on the connection follow that reply; `ended` is the last one.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Tagged(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    pass


# ---- client to server -----------------------------------------------------------------------------------------------


class Launch(_Tagged, frozen=True):
    """Starts an inferlet; the value is its id. It ends with the connection unless `detached`.

    `program` is a content hash, a unique beginning of one, or a name. `logs` asks for `log` events too.
    """

    id: int
    program: str
    arguments: list[str] = []
    environment: dict[str, str] = {}
    detached: bool = False
    logs: bool = False


class Attach(_Tagged, frozen=True):
    """Sends the events of a running inferlet here, those that nobody has read first. It outlives the connection."""

    id: int
    inferlet: str
    logs: bool = False


class Detach(_Tagged, frozen=True):
    """Stops the events of an inferlet here and lets it outlive the connection."""

    id: int
    inferlet: str


class Send(_Tagged, frozen=True):
    """A message for the inferlet's `receive`."""

    id: int
    inferlet: str
    text: str


class Terminate(_Tagged, frozen=True):
    """Ends an inferlet."""

    id: int
    inferlet: str
    reason: str = "terminated by a client"


class Inferlet(_Tagged, frozen=True):
    """The value tells of one inferlet."""

    id: int
    inferlet: str


class Inferlets(_Tagged, frozen=True):
    """The value lists running and recently ended inferlets."""

    id: int


class Logs(_Tagged, frozen=True):
    """The value lists the log lines kept of an inferlet."""

    id: int
    inferlet: str


class Program(_Tagged, frozen=True):
    """The value tells of one program, or is null when the server does not have it."""

    id: int
    program: str


class Programs(_Tagged, frozen=True):
    """The value lists all programs."""

    id: int


class Models(_Tagged, frozen=True):
    """The value lists the models that inferlets can use."""

    id: int


class Statistics(_Tagged, frozen=True):
    """The value tells how the server is doing."""

    id: int


Request = (
    Launch | Attach | Detach | Send | Terminate | Inferlet | Inferlets | Logs | Program | Programs | Models | Statistics
)


# ---- server to client -----------------------------------------------------------------------------------------------


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong: a stable code for programs and a sentence for people."""

    code: str
    message: str


class Reply(_Tagged, frozen=True):
    """A request was carried out."""

    id: int
    value: Any = None


class Error(_Tagged, frozen=True):
    """A request was refused and changed nothing. `id` is null if the request could not be read."""

    id: int | None
    error: ErrorBody


class MessageEvent(_Tagged, frozen=True, tag="message"):
    """The inferlet called `send`."""

    inferlet: str
    text: str


class LogEvent(_Tagged, frozen=True, tag="log"):
    """A line of `stdout`, `stderr` or `log`; `time` in seconds since the epoch."""

    inferlet: str
    time: float
    stream: str
    text: str


class EndedEvent(_Tagged, frozen=True, tag="ended"):
    """The last event of an inferlet. `result` is the JSON text of its result."""

    inferlet: str
    status: str
    result: str | None = None
    error: str | None = None


InferletEvent = MessageEvent | LogEvent | EndedEvent
FromServer = Reply | Error | InferletEvent

_requests = msgspec.json.Decoder(Request | list[Request])
_frames = msgspec.json.Decoder(list[FromServer])
_encode = msgspec.json.Encoder().encode


def encode(message: object) -> bytes:
    """JSON of a message, or of a value made of dataclasses, structs and builtins."""
    return _encode(message)


def decode_requests(frame: str | bytes) -> list[Request]:
    """The requests of a frame that a client sent; raises msgspec.DecodeError."""
    decoded = _requests.decode(frame)
    return decoded if isinstance(decoded, list) else [decoded]


def decode_frame(frame: str | bytes) -> list[FromServer]:
    """The messages of a frame that a server sent; raises msgspec.DecodeError."""
    return _frames.decode(frame)
