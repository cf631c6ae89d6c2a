"""Budgets over HTTP: what answers say of them, and how requests beyond them are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pie_control.http_server.served.rate_limits import rate_limit_headers
from pie_control.tenants.budgets import Budget
from pie_control.tenants.meters import Meters
from pie_control.tenants.tenant import DEFAULT_STANDING
from tests.control.http_server.test_http_server import http
from tests.helpers.fake_server_api import FakeServerApi, serve_async

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BODY = {"model": "fake+environment"}
LAUNCH = {"program": "environment"}


def limits_in(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if "ratelimit" in name}


def test_nothing_is_said_where_there_is_no_budget() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            assert not limits_in((await client.post(CHAT, json=BODY)).headers)

    serve_async(test)


@pytest.mark.parametrize(("path", "body"), [(CHAT, BODY), (MESSAGES, BODY), ("/v1/inferlets", LAUNCH)])
def test_beyond_the_budget_requests_are_refused(path: str, body: Any) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        runtime.meters.use({"default": Budget(requests_per_minute=2)})
        async with http(url) as client:
            for _ in range(2):
                answer = await client.post(path, json=body)
                assert answer.is_success
                assert limits_in(answer.headers)
            launched = len(runtime.inferlets())
            answer = await client.post(path, json=body)
            assert answer.status_code == 429
            assert 58 <= int(answer.headers["retry-after"]) <= 61
            error = answer.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert error["code"] == "rate-limited"
            assert re.match("tenant default has spent its 2 requests a minute: try again in ", error["message"])
            assert "0" in limits_in(answer.headers).values()
            assert len(runtime.inferlets()) == launched
            assert (await client.get("/v1/inferlets")).status_code == 200

    serve_async(test)


def test_the_headers_of_both_dialects() -> None:
    meters = Meters()
    meters.use({"default": Budget(requests_per_minute=60, tokens_per_minute=6000)})
    meter = meters.of(DEFAULT_STANDING)
    meter.requests(100.0)
    meter.computes(1500, 100.0)
    wall = 1_700_000_000.0
    assert dict(rate_limit_headers(meter, CHAT, 130.0, wall)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"30.25s",
        b"x-ratelimit-limit-tokens": b"6000",
        b"x-ratelimit-remaining-tokens": b"4500",
        b"x-ratelimit-reset-tokens": b"30.25s",
    }
    assert dict(rate_limit_headers(meter, MESSAGES, 130.0, wall)) == {
        b"anthropic-ratelimit-requests-limit": b"60",
        b"anthropic-ratelimit-requests-remaining": b"59",
        b"anthropic-ratelimit-requests-reset": b"2023-11-14T22:13:50Z",
        b"anthropic-ratelimit-tokens-limit": b"6000",
        b"anthropic-ratelimit-tokens-remaining": b"4500",
        b"anthropic-ratelimit-tokens-reset": b"2023-11-14T22:13:50Z",
    }
    assert dict(rate_limit_headers(meter, CHAT, 161.0, wall))[b"x-ratelimit-reset-tokens"] == b"0s"


def test_usage_over_http() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            await client.post(CHAT, json=BODY)
            (told,) = (await client.get("/v1/usage?days=2")).json()["data"]
            assert (told["tenant"], told["key"], told["requests"]) == ("default", "", 1)
            assert (await client.get("/v1/usage?days=0")).status_code == 400

    serve_async(test)
