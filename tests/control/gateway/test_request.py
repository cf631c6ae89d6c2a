"""What a request of a served route says to the server, and what the end of its inferlet says to the client."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from pie_control.gateway import request
from pie_control.gateway.ending import ENDINGS, result_of
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import LARGE, ServedRequest, Target, find_target, read_request
from pie_control.inferlets.events import Ended
from pie_control.inferlets.lifecycle import ENDINGS as LAST
from pie_control.inferlets.lifecycle import Status
from pie_control.services.nesting import PIECE

MODELS = {"demo": ["poet"], "org.model": []}


@pytest.mark.parametrize(
    ("body", "model", "stream"),
    [
        ({"model": "demo", "stream": True}, "demo", True),
        ({"model": "demo", "messages": [{"stream": 1}], "unknown": {"deep": []}}, "demo", False),
        ({"model": None, "stream": None}, "", False),
        ({}, "", False),
    ],
)
def test_three_fields_are_known(body: object, model: str, stream: bool) -> None:
    data = json.dumps(body).encode()
    assert read_request("/v1/completions", "r1", data) == ServedRequest("/v1/completions", "r1", data, model, stream)


LONG = b'"x": ["' + b", {" * LARGE + b'\\", ", 1, {"model": 7}]'
"""A field that makes a body large."""


@pytest.mark.parametrize(
    "body",
    [
        b'{%b, "model": "demo", "stream": true}' % LONG,
        b'{"model": "demo", %b, "stream" :true }\n' % LONG,
        b' { "stream": true, "model": "d\\u0065mo", %b }' % LONG,
    ],
)
def test_three_fields_are_known_of_a_large_body(body: bytes) -> None:
    json.loads(body)
    assert read_request("/v1/completions", "r1", body) == ServedRequest("/v1/completions", "r1", body, "demo", True)


def test_of_a_large_body_only_what_is_short_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    class Decoder:
        def decode(self, text: bytes) -> Any:
            decoded.append(text)
            return msgspec.json.decode(text, type=request.__dict__["_Known"])

    monkeypatch.setattr(request, "_decoder", Decoder())
    read_request("/v1/completions", "r1", b'{%b, "model": "demo", %b}' % (LONG, LONG))
    assert decoded == [b'{"x":[], "model": "demo", "x":[]}']


@pytest.mark.parametrize(
    ("value", "priority"),
    [(-10, -10), (3, 3), (2.0, 2), (None, 0), (11, 0), (True, 0), ("high", 0), ([], 0), (10**30, 0)],
)
def test_a_priority_that_is_none_is_for_the_program_to_refuse(value: object, priority: int) -> None:
    data = json.dumps({"priority": value}).encode()
    assert read_request("/v1/completions", "r1", data).priority == priority


def test_a_request_may_be_nested_and_long() -> None:
    parts = [[{"type": "text", "text": "x"}]] * 1000
    nested = b"[" * 255 + b"]" * 255
    strings = b'{"x": ["' + (b"[" * 300 + b'\\" \\\\') + b'"]}'
    flat = b'{"x": [' + b"{}," * 500_000 + b"[]]}"
    for body in (json.dumps({"parts": parts}).encode(), b'{"x": ' + nested + b"}", strings, flat):
        assert read_request("/v1/completions", "r1", body).body == body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"demo"', None),
        (b'{"model": "demo"', None),
        (b'{"model": "demo"} x', None),
        (b'{"model": 7}', "model"),
        (b'{"stream": "yes"}', "stream"),
        (b'{"stream": 1}', "stream"),
        (b'{"model": "\xff"}', None),
        (b"{%b" % LONG, None),
        (b'{%b, "model": 7}' % LONG, "model"),
        (b'{"model": %b}' % LONG.partition(b" ")[2], "model"),
        (b"[%b]" % LONG.partition(b" ")[2], None),
        (b'{%b"a": 1}' % (b'"a": 1,' * LARGE), None),
        (b'{"x": "' + b"a" * (1 << 20) + b'", "y": ' + b"[" * 256 + b"]" * 256 + b"}", None),
        *((b'{"x": ' + b"[" * levels + b"]" * levels + b"}", None) for levels in (256, 5000, 100_000)),
    ],
)
def test_what_is_no_request(body: bytes, param: str | None) -> None:
    with pytest.raises(Refused) as refused:
        read_request("/v1/completions", "r1", body)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_of_a_large_body_no_place_in_a_shortened_one_is_told() -> None:
    with pytest.raises(Refused, match=r"object keys must be strings$"):
        read_request("/v1/completions", "r1", b"{%b, 7: 1}" % LONG)
    with pytest.raises(Refused, match=r"object keys must be strings \(byte 2\)$"):
        read_request("/v1/completions", "r1", b"{ 7: 1}")


def test_half_of_a_surrogate_pair_is_told() -> None:
    with pytest.raises(Refused, match="half of a surrogate pair"):
        read_request("/v1/completions", "r1", json.dumps({"model": "\ud83d"}).encode())


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("", Target("demo")),
        ("demo", Target("demo")),
        ("demo/poet", Target("demo", "poet")),
        ("demo+mine", Target("demo", "", "mine")),
        ("demo/poet+a/b+c", Target("demo", "poet", "a/b+c")),
        ("+mine", Target("demo", "", "mine")),
        ("org.model", Target("org.model")),
    ],
)
def test_names_of_models(name: str, target: Target) -> None:
    assert find_target(name, MODELS) == target


@pytest.mark.parametrize("name", ["other", "demo/", "demo/other", "org.model/poet", "/poet", "Demo", "other+mine"])
def test_models_that_are_none(name: str) -> None:
    with pytest.raises(Refused) as refused:
        find_target(name, MODELS)
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "model_not_found", "model")
    assert "demo/poet" in str(refused.value)


def test_a_result_is_the_answer() -> None:
    for result in ('{"a": 1}', '"\\"served_error\\""', '{"x": "served_error", "served_error": 3}', "[]"):
        assert result_of(Ended("finished", result, inferlet="i1")) == result
    assert result_of(Ended("finished", inferlet="i1")) == "null"


@pytest.mark.parametrize(("status", "told"), [(422, 422), (599, 599), (200, 500), (7, 500)])
def test_a_result_that_is_an_error(status: int, told: int) -> None:
    error = {"status": status, "message": "too many", "param": "n", "code": 12, "type": "odd"}
    with pytest.raises(Refused, match="too many") as refused:
        result_of(Ended("finished", json.dumps({"served_error": error}), inferlet="i1"))
    found = refused.value
    assert (found.status, found.param, found.code, found.type) == (told, "n", "12", "odd")


def test_every_other_end_is_an_error_without_internals() -> None:
    assert ENDINGS.keys() == LAST - {Status.FINISHED}
    for status in ENDINGS:
        with pytest.raises(Refused) as refused:
            result_of(Ended(status, None, "Traceback: secret", inferlet="i7"))
        assert "secret" not in str(refused.value)
        assert refused.value.status in (409, 500, 503)


def test_nothing_large_is_made_of_a_request() -> None:
    body = b'{"model": "demo", "priority": [' + b"[]," * 500_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert read_request("/v1/completions", "r1", body).priority == 0
        assert tracemalloc.get_traced_memory()[1] < 16 * PIECE
    finally:
        tracemalloc.stop()
