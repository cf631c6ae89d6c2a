"""`http_get`, `http_post` and responses, on a web of a few pages."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from inferlet_sdk import Blob, NotFound, RequestFailed, Response, http_get, http_post, traits
from inferlet_sdk.dropped import give_back
from inferlet_sdk.event_loop import run
from inferlet_sdk.traits.outside.http import Headers
from tests.helpers.native_host import NativeHost, install

URL = "https://api.example.com/"


def test_a_get_has_parameters_and_headers(host: NativeHost) -> None:
    async def main() -> Any:
        response = await http_get(URL + "a b?x=1#z", params={"q": "ä&b", "n": [1, 2]}, headers={"A": "b"}, timeout=3)
        return await response.json()

    asked = run(main())
    assert asked["url"] == URL + "a%20b?x=1&q=%C3%A4%26b&n=1&n=2#z"
    assert (asked["method"], asked["headers"], asked["body"]) == ("GET", [["A", "b"]], "")
    assert (host.web.asked[0]["timeout"], host.web.asked[0]["redirects"]) == (3.0, 5)
    assert host.handles == [], "a body that was read is closed"


@pytest.mark.parametrize(
    ("given", "body", "kind"),
    [
        ({"json": {"a": [1]}}, '{"a": [1]}', "application/json"),
        ({"json": 0}, "0", "application/json"),
        ({"text": "ä"}, "ä", "text/plain; charset=utf-8"),
        ({"data": {"a": "b c", "n": [1, 2]}}, "a=b+c&n=1&n=2", "application/x-www-form-urlencoded"),
        ({"data": b"raw"}, "raw", None),
        ({}, "", None),
        ({"json": 1, "headers": {"content-TYPE": "mine"}}, "1", "mine"),
    ],
)
def test_a_post_has_a_body_and_says_what_it_is(host: NativeHost, given: Any, body: str, kind: str | None) -> None:
    http_post(URL, **given).result()
    (asked,) = host.web.asked
    assert asked["body"] == body
    assert [value for _, value in asked["headers"]] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"json": 1, "text": "x"}, TypeError, "give one of json, text and data"),
        ({"json": object()}, TypeError, "json: cannot be written"),
        ({"params": {"q": ["a", "b\ud800"]}}, ValueError, r"params: 'b\\ud800' has half of a surrogate pair"),
        ({"data": {"\ud800": 1}}, ValueError, r"data: '\\ud800' has half of a surrogate pair"),
        ({"timeout": float("nan")}, ValueError, r"\$\['timeout'\] is nan"),
        (
            {"json": {"a": [1, float("nan")]}},
            TypeError,
            r"json: cannot be written as JSON: \$\['a'\]\[1\] is nan, which is",
        ),
        ({"data": "text"}, TypeError, "data: give bytes"),
        ({"headers": [("a", "b")]}, TypeError, "headers: give a mapping"),
        ({"headers": {"a": 1}}, TypeError, r"headers\['a'\]: give text"),
        ({"params": "a=b"}, TypeError, "params: give a mapping"),
        ({"timeout": "1"}, TypeError, "timeout: give a number"),
        ({"redirects": -1}, ValueError, "redirects: -1"),
        ({"text": "\ud800"}, ValueError, "text: character 0"),
    ],
)
def test_wrong_arguments_are_named(host: NativeHost, given: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        http_post(URL, **given)
    assert host.calls == []


def test_a_body_comes_in_pieces_and_lines(host: NativeHost) -> None:
    host.web.pages[URL] = (200, {"content-type": "text/event-stream"}, "data: ä\r\n\r\ndata: b\nend".encode())
    host.web.piece_bytes = 5

    async def main() -> Any:
        pieces = [piece async for piece in await http_get(URL)]
        lines, found = aiter((await http_get(URL)).lines()), list[str]()
        while True:
            waiting = asyncio.ensure_future(anext(lines, None))
            await asyncio.sleep(0)
            waiting.cancel()  # which loses nothing
            await asyncio.gather(waiting, return_exceptions=True)
            if (line := await anext(lines, None)) is None:
                return pieces, found
            found.append(line)

    pieces, lines = run(main())
    assert max(map(len, pieces)) <= 5
    assert b"".join(pieces) == host.web.pages[URL][2]
    assert lines == ["data: ä", "", "data: b", "end"]
    assert host.handles == []


def test_a_whole_body_is_kept_and_a_streamed_one_is_not(host: NativeHost) -> None:
    async def main() -> None:
        response = await http_get(URL)
        assert await response.read() == await response.read()
        assert (await response.text()).startswith("{")
        streamed = await http_get(URL)
        async for _ in streamed:
            break
        with pytest.raises(RequestFailed, match="read before, or closed"):
            await streamed.read()
        streamed.close()
        streamed.close()

    run(main())
    assert host.handles == []


def test_without_asyncio_nothing_is_awaited(host: NativeHost) -> None:
    host.web.pages[URL] = (200, {"content-type": "text/plain; charset=latin-1"}, b"\xe4")
    response = http_get(URL).result()
    assert (response.text(), response.read()) == ("ä", b"\xe4")
    assert list(http_get(URL).result()) == [b"\xe4"]


def test_a_status_is_no_error_until_it_is_asked(host: NativeHost) -> None:
    host.web.pages[URL] = (404, {"content-type": "text/html"}, b"<html>")
    response = http_get(URL).result()
    assert (response.status, response.ok) == (404, False)
    with pytest.raises(RequestFailed, match="answered with status 404"):
        response.raise_for_status()
    with pytest.raises(RequestFailed, match="status 404 and text/html, not JSON"):
        response.json()
    host.web.pages[URL] = (None, {}, b"no connection")
    with pytest.raises(RequestFailed, match="no connection"):
        http_get(URL).result()


@pytest.mark.parametrize("name", ["klingon", "undefined", "idna"])  # Python has codecs of the last two
def test_an_unknown_character_set_is_utf8(host: NativeHost, name: str) -> None:
    host.web.pages[URL] = (200, {"content-type": f"text/plain; charset={name}"}, "ä".encode())
    assert http_get(URL).result().text() == "ä"


def test_headers_are_found_in_any_case() -> None:
    headers = Headers([("a", "1"), ("b", "2"), ("a", "3")])
    assert (headers["A"], headers.get("c"), len(headers), "B" in headers) == ("1, 3", None, 2, True)
    assert json.dumps(dict(headers)) == '{"a": "1, 3", "b": "2"}'


def test_a_response_that_is_dropped_is_closed(host: NativeHost) -> None:
    response: Response | None = http_get(URL).result()
    assert len(host.handles) == 1
    response = None
    gc.collect()
    assert len(host.handles) == 1, "finalizers call nothing"
    give_back()
    assert host.handles == []
    assert response is None


def test_the_calls_under_their_own_names(host: NativeHost) -> None:
    response = http_get(URL).result()
    body = vars(response)["_body"]
    assert traits.read_body(body, 3).result() == b'{"m'
    traits.close_body(body)
    for refused in (lambda: traits.read_body(body), lambda: traits.close_body(body)):
        with pytest.raises(NotFound):
            refused()
    with pytest.raises(ValueError, match="most: 0"):
        traits.read_body(body, 0)
    vars(response)["_body"] = None


def test_a_blob_that_is_sent_counts_until_the_request_has_ended() -> None:
    host = install(blobs={"photo": b"a cat"})
    held = host.guest.inferlet.blobs
    host.web.pages[URL] = 200, {"content-length": "1000000"}, bytes(1_000_000)
    blob = Blob.open("photo")
    response = http_post(URL, data=blob).result()
    blob.close()
    host.settle()
    assert held.bytes == len(b"a cat")
    response.close()
    host.settle()
    assert held.bytes == 0
    assert host.web.asked[0]["body"] == "a cat"
