"""What may be sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pie_control.errors import CallError, InvalidArgument, RequestFailed
from pie_control.services.http.request import HttpRequest, new_request, parse_url, redirected


def asked(url: str = "https://a.example/x?y#z", method: str = "GET", body: bytes = b"", **options: Any) -> HttpRequest:
    headers = options.pop("headers", [])
    return new_request(method, url, json.dumps(headers), body, json.dumps(options), 60.0)


def test_a_url_is_taken_apart() -> None:
    target = parse_url("HTTPS://API.Example.com:8443/a%20b?c=d#e")
    assert (target.scheme, target.host, target.port, target.path) == ("https", "api.example.com", 8443, "/a%20b?c=d")
    assert target.authority == "api.example.com:8443"
    assert parse_url("http://[::1]").authority == "[::1]"
    assert parse_url("http://a?b").path == "/?b"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://a/", "the scheme is"),
        ("file:///etc/passwd", "the scheme is"),
        ("//a/", "the scheme is"),
        ("a", "the scheme is"),
        ("http:///x", "no name of a server"),
        ("http://u:p@a/", "Authorization"),
        ("http://a@b/", "Authorization"),
        ("http://a:99999/", "url: "),
        ("http://a:0/", "no port 0"),
        ("http://a:x/", "url: "),
        ("http://a b/", "%XX"),
        ("http://a/\r\nX: y", "%XX"),
        ("http://a/\x00", "%XX"),
        ("http://bücher.example/", "%XX"),
        ("http://a%2eb/", "no name of a server"),
        ("http://[fe80::1%25eth0]/", "url: "),
        ("http://a\\@b/", ""),
        ("http://[::1/", "url: "),
        ("http://" + "a" * 300, "no name of a server"),
        ("http://a/" + "x" * 9000, "characters are more than"),
    ],
)
def test_a_bad_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match="url: ") as refused:
        parse_url(url)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([["A", "b\r\nHost: evil"]], "line ends"),
        ([["A", "b\x00"]], "line ends"),
        ([["A", "ü\u4e16"]], "line ends"),
        ([["A: b", "c"]], "no name of a header"),
        ([["", "c"]], "no name of a header"),
        ([["A\n", "c"]], "no name of a header"),
        ([["hOsT", "evil"]], "so it is set here"),
        ([["Content-Length", "7"]], "so it is set here"),
        ([["Transfer-Encoding", "chunked"]], "so it is set here"),
        ([["a", "b"]] * 65, "there may be"),
        ([["a", "b" * 40_000]], "there may be"),
        ({"a": "b"}, "list of pairs"),
        ([["a"]], "list of pairs"),
        ([["a", 1]], "list of pairs"),
    ],
)
def test_bad_headers_are_refused(headers: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        asked(headers=headers)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": 0}, "not between 0 and 60"),
        ({"timeout": 61}, "http_seconds"),
        ({"timeout": "1"}, "options are"),
        ({"redirects": 11}, "not between 0 and 10"),
        ({"redirects": -1}, "not between 0 and 10"),
        ({"verify": False}, "verify"),
        ({"proxy": "http://a"}, "proxy"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        asked(**options)


def test_a_blob_is_the_body() -> None:
    sent = new_request("POST", "https://a.example", "", b"", '{"blob": 7}', 60.0, {7: b"seven"}.__getitem__)
    assert sent.body == b"seven"
    with pytest.raises(InvalidArgument, match="no other body"):
        asked(method="POST", body=b"x", blob=7)
    with pytest.raises(InvalidArgument, match="no blobs here"):
        asked(method="POST", blob=7)


def test_methods_are_those_of_http() -> None:
    for method in ("CONNECT", "TRACE", "get", "GET /evil HTTP/1.1\r\n", ""):
        with pytest.raises(InvalidArgument, match="method: "):
            asked(method=method)
    with pytest.raises(InvalidArgument, match="a GET request has none"):
        asked(body=b"x")


SECRETS = [["Authorization", "Bearer s"], ["X-Api-Key", "s"], ["Cookie", "s"], ["Accept", "*/*"], ["User-Agent", "me"]]


def test_secrets_stay_with_the_first_server() -> None:
    request = asked(headers=SECRETS)
    same = redirected(request, 302, "/other")
    assert (same.target.url, same.headers) == ("https://a.example/other", request.headers)
    for location in ("https://b.example/", "https://a.example:8443/", "//b.example/"):
        assert redirected(request, 302, location).headers == (("Accept", "*/*"), ("User-Agent", "me"))


@pytest.mark.parametrize(
    ("method", "status", "after"),
    [("POST", 301, "GET"), ("POST", 302, "GET"), ("POST", 303, "GET"), ("PUT", 303, "GET"), ("PUT", 302, "PUT"),
     ("POST", 307, "POST"), ("POST", 308, "POST"), ("HEAD", 303, "HEAD"), ("GET", 301, "GET")],
)  # fmt: skip
def test_a_redirect_keeps_the_method_or_asks_anew(method: str, status: int, after: str) -> None:
    body = b"" if method in ("GET", "HEAD") else b"x"
    request = redirected(asked(method=method, body=body, headers=[["Content-Type", "a/b"]]), status, "/y")
    assert (request.method, request.body) == (after, body if after == method else b"")
    assert bool(request.headers) == (after == method)
    assert request.redirects == 4


def test_a_redirect_never_leaves_https_or_http() -> None:
    with pytest.raises(RequestFailed, match="from https to http"):
        redirected(asked(), 302, "http://a.example/")
    with pytest.raises(RequestFailed, match="redirects to what is no URL"):
        redirected(asked(), 302, "http://[")
    for location in ("file:///etc/passwd", "gopher://a", "http://u:p@b/", "https://a\r\nb"):
        with pytest.raises(CallError):
            redirected(asked(), 302, location)
