"""A request of a served route, as far as the server knows it: its model, its priority, and whether the answer is a
stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from ..services.nesting import depth_of, outline_of
from ..tenants.tenant import MOST_PRIORITY
from ..texts import json_fault
from .refusal import Refused

FIELD = re.compile(r"at `\$\.(\w+)`")
"""In what msgspec says: the field of a wrong type."""
PLACE = re.compile(r" \(byte \d+\)")
"""In what it says: where a fault is."""


class _Known(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    priority: msgspec.Raw = msgspec.Raw(b"0")  # whatever it is, nothing is made of it that may be large


_decoder = msgspec.json.Decoder(_Known)
_numbers = msgspec.json.Decoder(int | float)

MOST_LEVELS = 256
"""Objects and lists within each other: what a guest's stack holds by far, and more than anybody writes."""
LARGE = 256 << 10
"""Bytes of a body of which only what is short is decoded: meanwhile no other thread has a turn."""
SHORT, MOST_FIELDS = 1024, 1000
"""Bytes of a field that is decoded of a large body, and how many fields that has."""
NAME = re.compile(rb'[\s{]*"(?:[^"\\]|\\.)*"\s*:')
"""How a member of an object begins."""


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """`route`: its path; `id`: as its client or the server calls it; `body`: JSON, as it came; `model`: as the client
    has named it, "": the first one. `priority`: as in `Standing`. `answer_id`: of its answer, no other one has it."""

    route: str
    id: str
    body: bytes
    model: str
    stream: bool
    priority: int = 0
    answer_id: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What the `model` of a request means. `adapter` and `program` may be "": none, and the one of the route."""

    model: str
    adapter: str = ""
    program: str = ""


def read_request(route: str, id: str, body: bytes, answer_id: str = "") -> ServedRequest:
    """The request in a body; raises Refused for what is no JSON object, or has a `model` or `stream` of a wrong type.
    Other fields are the program's, as are the long ones of a large body, whatever they are. Takes time if it is
    large."""
    text = body
    try:
        if len(body) > LARGE:
            text = _short_of(body)
        elif body.count(b"[") + body.count(b"{") > MOST_LEVELS:
            _check_depth(depth_of(body))
        known = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        field, fault = FIELD.search(str(error)), json_fault(text, error)
        fault = fault if text is body else PLACE.sub("", fault)  # which is one of the shortened text
        raise Refused(400, f"the request is malformed: {fault}", "bad-request", field[1] if field else None) from None
    priority = _priority(known.priority)
    return ServedRequest(route, id, body, known.model or "", bool(known.stream), priority, answer_id)


def _check_depth(levels: int) -> None:
    if levels > MOST_LEVELS:
        raise RecursionError(f"its objects and lists are nested more than {MOST_LEVELS} deep")


def _short_of(body: bytes) -> bytes:
    """The object that a large body is, with an empty list for each value that is long. Raises RecursionError,
    Refused."""
    depth, commas = outline_of(body, MOST_FIELDS)
    _check_depth(depth)
    if len(commas) >= MOST_FIELDS:
        raise Refused(400, f"the request has more than {MOST_FIELDS} fields: send fewer", "bad-request")
    ends = [*commas, len(body)]
    members = (_short(body, begin, end) for begin, end in zip([0, *(one + 1 for one in commas)], ends, strict=True))
    return b",".join(members)


def _short(body: bytes, begin: int, end: int) -> bytes:
    if end - begin <= SHORT:
        return body[begin:end]
    name = NAME.match(body[begin : begin + SHORT])
    closing = b"}" if end == len(body) and body[-SHORT:].rstrip().endswith(b"}") else b""
    return (name[0] if name else b"") + b"[]" + closing


def _priority(written: msgspec.Raw) -> int:
    """What the program will refuse, or means in another way, orders nothing."""
    try:
        value = _numbers.decode(written)
    except msgspec.DecodeError:
        return 0
    return int(value) if abs(value) <= MOST_PRIORITY else 0


def find_target(name: str, models: Mapping[str, Collection[str]]) -> Target:
    """What a name such as `demo`, `demo/poet` or `demo/poet+my_agent` means, of these models and their adapters. Raises
    Refused."""
    base, _, program = name.partition("+")
    if not base:
        return Target(next(iter(models)), "", program)
    if base in models:
        return Target(base, "", program)
    model, _, adapter = base.rpartition("/")
    if model in models and adapter in models[model]:
        return Target(model, adapter, program)
    known = ", ".join([*models, *(f"{model}/{one}" for model, adapters in models.items() for one in adapters)])
    raise unknown_model(f"no model {name[:80]!r}: this server has {known}; MODEL+PROGRAM runs a program of yours")


def unknown_model(message: str) -> Refused:
    """The refusal of a `model` that means nothing here."""
    return Refused(404, message, "model_not_found", "model")
