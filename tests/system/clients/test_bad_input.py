"""What is wrong with a request is told by status, code and field (docs/http-api.md); neighbours are served on."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
USER = {"role": "user", "content": "Hi"}
SHORT: dict[str, Any] = {"model": "fake", "max_tokens": 2, "ignore_eos": True}
MIB = 1 << 20


@pytest.fixture(scope="module")
def client(guest_cache: Path) -> Iterator[httpx.Client]:
    with (
        live_server(guest_cache, max_blob_bytes=2 * MIB) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=HANG_SECONDS) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def neighbour(client: httpx.Client) -> Iterator[None]:
    """A stream that begins before each test and is read behind it: it has all its tokens."""
    body = {**SHORT, "prompt": "a", "max_tokens": 50, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", TEXT, json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield
        *_, last, done = [line for line in lines if line]
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == 50


def error_of(answer: httpx.Response) -> tuple[int, Any, Any]:
    """Status, code and field of a refusal."""
    error = answer.json()["error"]
    assert error["message"]
    return answer.status_code, error["code"], error["param"]


def image(text: str) -> Any:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": text}}]}]


def schema(value: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value}}}


DEEP: Any = {}
for _ in range(200):
    DEEP = {"type": "array", "items": DEEP}
MANY = {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": f"^(a{n}|b)*$"} for n in range(3000)}}
MALFORMED, UNSUPPORTED, URL = "bad-request", "unsupported_parameter", "messages[0].content[0].image_url.url"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": 500}, (400, None, "n")),
        ({"model": "nobody"}, (404, "model_not_found", "model")),
        ({"model": "fake+nothing"}, (404, "model_not_found", "model")),
        ({"model": "fake/nobody"}, (404, "model_not_found", "model")),
        ({"model": 5}, (400, MALFORMED, "model")),
        ({"stream": "yes"}, (400, MALFORMED, "stream")),
        ({"messages": []}, (400, None, "messages")),
        ({"messages": [USER] * 10_000}, (400, "context_length_exceeded", "messages")),
        ({"messages": image("data:image/png;base64," + "A" * 400)}, (400, UNSUPPORTED, URL)),
        ({"messages": image("file:///etc/passwd")}, (400, UNSUPPORTED, URL)),
        (schema({"type": "hiccup"}), (400, None, "response_format")),
        (schema({"$ref": "#/$defs/missing"}), (400, None, "response_format")),
        (schema(DEEP), (400, None, "response_format")),
        (schema(MANY), (400, None, "response_format")),
        ({"structured_outputs": {"regex": "((a{1000}){1000}){1000}"}}, (400, None, "structured_outputs")),
        ({"structured_outputs": {"regex": "("}}, (400, None, "structured_outputs")),
        ({"logit_bias": {"999999": 1}}, (400, None, "logit_bias")),
        ({"stop_token_ids": [999_999]}, (400, None, "stop_token_ids")),
        ({"allowed_token_ids": [1]}, (400, UNSUPPORTED, "allowed_token_ids")),
    ],
    ids=lambda one: None if isinstance(one, tuple) else ",".join(one),
)
def test_refusals(client: httpx.Client, fields: dict[str, Any], expected: tuple[int, Any, Any]) -> None:
    assert error_of(client.post(CHAT, json={**SHORT, "messages": [USER], **fields})) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": [f"stop {n}" for n in range(1000)]},
        {"logit_bias": {str(n): 1 for n in range(200)}},
        schema({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}),
    ],
    ids=["stop", "bias", "recursive"],
)
def test_much_that_is_served(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post(CHAT, json={**SHORT, "messages": [USER], **fields})
    assert (answer.status_code, answer.json().get("usage", {}).get("completion_tokens")) == (200, 2), answer.text


def test_tokens_that_are_none_are_told_by_their_field(client: httpx.Client) -> None:
    for path, name in ((TEXT, "prompt"), ("/v1/embeddings", "input"), ("/detokenize", "tokens")):
        status, _, param = error_of(client.post(path, json={name: [999_999]}))
        assert (status, param) == (400, name), path


def test_what_is_not_there_is_named(client: httpx.Client) -> None:
    answer = client.get("/v1/nothing")
    assert error_of(answer) == (404, "not-found", None)
    assert "no /v1/nothing here" in answer.json()["error"]["message"]
    answer = client.put(CHAT, content=b"{}")
    assert error_of(answer) == (405, "method-not-allowed", None)
    assert answer.json()["error"]["message"] == f"{CHAT} takes POST, not PUT"
    assert answer.headers["allow"] == "POST"
    assert client.put("/v1/inferlets/i1").headers["allow"] == "DELETE, GET"
    assert error_of(client.get("/v1/usage?days=x")) == (400, "bad-request", "days")


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/responses", "/v1/embeddings", "/v1/rerank"])
def test_bodies(client: httpx.Client, path: str) -> None:
    for content in (
        b"",
        b'{"model": "fake',
        b"[]",
        b"\xff\xfe{}",
        b"null",
        *(b'{"a": ' + b"[" * levels + b"]" * levels + b"}" for levels in (250, 800, 5000)),
    ):
        answer = client.post(path, content=content)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), content[:20]
    huge = client.post(path, content=b'{"a": "' + b"x" * 3 * MIB + b'"}')
    assert huge.status_code == 413
    parts = client.post(path, content=(b" " * MIB for _ in range(3)))
    assert parts.status_code == 413
    assert client.put(path, json={}).status_code == 405


def test_errors_of_anthropics_route_have_its_form(client: httpx.Client) -> None:
    for answer in (
        client.post(MESSAGES, json={**SHORT, "model": "nobody", "messages": [USER]}),
        client.post(MESSAGES, json={"model": "fake", "messages": [USER]}),
        client.post(MESSAGES, content=b"{"),
        client.post(MESSAGES, content=b"x" * 3 * MIB),
        client.get(MESSAGES),
    ):
        body = answer.json()
        assert (body["type"], bool(body["error"]["message"])) == ("error", True)


@pytest.mark.parametrize("told", [b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n", b""])
def test_a_client_that_stops_in_the_middle(client: httpx.Client, told: bytes) -> None:
    """Its request is dropped; the server answers the next one."""
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port), HANG_SECONDS) as raw:
        raw.sendall(told + (b'content-length: 90\r\n\r\n{"prompt": "a' if told else b"POST /v1/comp"))
        raw.shutdown(socket.SHUT_WR)
        assert b"200 OK" not in raw.recv(4096)
    assert client.post(TEXT, json={**SHORT, "prompt": "a"}).status_code == 200


def test_an_image_that_is_none(client: httpx.Client) -> None:
    """It begins as one; the model of this server takes none in any case."""
    text = b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 300).decode()
    for url in (f"data:image/png;base64,{text}", f"data:image/png;base64,{text[:-3]}", text):
        answer = client.post(CHAT, json={**SHORT, "messages": image(url)})
        assert error_of(answer) == (400, UNSUPPORTED, URL)
