"""How an inferlet is launched, and what others hear of it: events for its client, which are also the messages on the
wire, and what it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..ids import Owner
from ..record import Record
from ..tenants.tenant import DEFAULT_STANDING, Standing


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    inferlet: str
    """Id of the inferlet."""


class Message(_Event, frozen=True, tag="message"):
    """The inferlet called `send`."""

    text: str


class LogLine(_Event, frozen=True, tag="log"):
    """A line of `stdout`, `stderr` or `log`. `time` is in seconds since the epoch; `number`: its place in the log,
    from 1 on, where it comes from there."""

    time: float
    stream: str
    text: str
    number: int = 0


class Ended(_Event, frozen=True, tag="ended"):
    """The last event. `status` is a terminal `Status`; `result` is the JSON text given to `set_result`."""

    status: str
    result: str | None = None
    error: str | None = None


Event = Message | LogLine | Ended


class Launch(Record, frozen=True):
    """Starts an inferlet of a program that was provided. `number` is unique over all hosts; `age`: seconds since its
    launch was asked for. `parent`: the inferlet that has asked for it, by a `LaunchChild` with the same `child`; 0:
    a client."""

    number: Owner
    program: str  # hash
    name: str  # of the program
    arguments: Sequence[str]
    environment: Mapping[str, str]
    age: float = 0.0
    standing: Standing = DEFAULT_STANDING
    blobs: Mapping[str, bytes] = {}
    parent: Owner = 0
    child: int = 0


class InferletWait(Record, frozen=True, tag=None):
    """What an inferlet waits for, and since when. `what`: a noun, with its article; "": it computes."""

    number: Owner
    what: str
    seconds: float


class Span(Record, frozen=True, tag=None):
    """Something that an inferlet has done, for traces: it has just ended. `operation`: in the words of OpenTelemetry's
    conventions, such as `execute_tool`; "": its own. `error`: the kind of error by which it failed, or ""."""

    operation: str
    name: str
    microseconds: int
    error: str


WHERE = "info: where its tasks are:"
"""So begins the line of its log in which a Python program says where it stands."""


class InferletUsage(Record, frozen=True, tag=None):
    """What an inferlet has used, and holds now."""

    number: Owner
    cpu_seconds: float
    pages: int
    embeds: int
