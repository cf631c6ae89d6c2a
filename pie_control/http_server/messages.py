"""Messages of `WS /v1/session`, the connection that many inferlets share. JSON in text frames.

A frame from the client holds one request or a list of requests. A frame from the server holds a list of replies and
events; what arises in one turn of its loop travels in one frame, up to a size. Each message has a `type`. The client
chooses a request's `id`; the answer, `reply` or `error`, repeats it. The events of an inferlet that was attached on the
connection, or launched without `detached` (`pie_control.inferlets.events`), follow that reply, in their order; `ended`
is the last one. Replies overtake events that wait for a slow client, and events of one inferlet those of another.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from pie_control.inferlets.events import Event


class _Tagged(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    pass


# ---- client to server -----------------------------------------------------------------------------------------------


class _Request(_Tagged, frozen=True):
    id: int


class _OfInferlet(_Request, frozen=True):
    inferlet: str


class LaunchInferlet(_Request, frozen=True, tag="launch"):
    """Starts an inferlet; the value is its id. It ends with the connection unless `detached`; then its events are kept
    for the first client that attaches, which may be this one.

    `program` is a content hash, a unique beginning of one, or a name. `logs` asks for `log` events too.
    `blobs`: content hashes of uploaded blobs, by the names under which the inferlet knows them.
    """

    program: str
    arguments: list[str] = []
    environment: dict[str, str] = {}
    blobs: dict[str, str] = {}
    detached: bool = False
    logs: bool = False


class Attach(_OfInferlet, frozen=True):
    """Sends the events of a running inferlet here, first those that nobody has read. It outlives the connection."""

    logs: bool = False


class Detach(_OfInferlet, frozen=True):
    """Sends no more events of an inferlet here, and lets it outlive the connection."""


class Send(_OfInferlet, frozen=True):
    """Sends a message, which the inferlet's `receive` returns. `blobs`: as of `LaunchInferlet`."""

    text: str
    blobs: dict[str, str] = {}


class Terminate(_OfInferlet, frozen=True):
    """Ends an inferlet."""

    reason: str = "terminated by a client"


class ShowInferlet(_OfInferlet, frozen=True, tag="inferlet"):
    """The value describes one inferlet. `stack`: and its log tells soon where its tasks are, unless it computes, or
    waits for the model alone."""

    stack: bool = False


class ListInferlets(_Request, frozen=True, tag="inferlets"):
    """The value lists running and recently ended inferlets. `of_all`: of all tenants, without results and errors of
    others; for who may see them."""

    of_all: bool = False


class Logs(_OfInferlet, frozen=True):
    """The value lists the log lines of an inferlet that the server keeps, behind the one of this number."""

    after: int = 0


class ShowProgram(_Request, frozen=True, tag="program"):
    """The value describes one program, or is null if the server does not have it."""

    program: str


class ListPrograms(_Request, frozen=True, tag="programs"):
    """The value lists all programs."""


class Models(_Request, frozen=True):
    """The value lists the models that inferlets can use."""


class Statistics(_Request, frozen=True):
    """The value holds what `GET /v1/statistics` tells."""


Request = (
    LaunchInferlet
    | Attach
    | Detach
    | Send
    | Terminate
    | ShowInferlet
    | ListInferlets
    | Logs
    | ShowProgram
    | ListPrograms
    | Models
    | Statistics
)


# ---- server to client -----------------------------------------------------------------------------------------------


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong: a stable code for programs and a sentence for people. Over HTTP, `type` and `param` are said as
    well: a class of errors, by default that of the status, and the field of the request that is wrong."""

    code: str | None
    message: str
    type: str = ""
    param: str | None = None


class Reply(_Tagged, frozen=True):
    """A request was carried out."""

    id: int
    value: Any = None


class Error(_Tagged, frozen=True):
    """A request was refused and changed nothing. `id` is null if the request could not be read."""

    id: int | None
    error: ErrorBody


FromServer = Reply | Error | Event

FRAME_HEADER = "x-max-frame-bytes"
"""The answer to the handshake says here how large a frame of the client may be: a larger one ends the session."""
MAX_REQUESTS = 1000
"""In one frame."""

_requests = msgspec.json.Decoder(Request | Annotated[list[Request], msgspec.Meta(max_length=MAX_REQUESTS)])
_frames = msgspec.json.Decoder(list[FromServer])
_encode = msgspec.json.Encoder().encode


def encode(message: object) -> bytes:
    """JSON of a message, or of a value made of dataclasses, structs and builtins."""
    return _encode(message)


def decode_requests(frame: str | bytes) -> list[Request]:
    """The requests of a frame that a client sent; raises msgspec.DecodeError, or RecursionError if it nests deeply."""
    decoded = _requests.decode(frame)
    return decoded if isinstance(decoded, list) else [decoded]


def decode_frame(frame: str | bytes) -> list[FromServer]:
    """The messages of a frame that a server sent; raises msgspec.DecodeError."""
    return _frames.decode(frame)
