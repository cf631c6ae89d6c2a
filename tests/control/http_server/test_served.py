"""Served routes over HTTP: what a program's messages, result and errors become."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from pie_control.gateway.refusal import Refused
from pie_control.http_server.served.dialects import dialect_of
from pie_control.http_server.served.response import ServedResponse
from pie_control.tenants.budgets import Budget
from tests.control.http_server.test_http_server import ended, http
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.garbage import without_collections

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def test_the_result_is_the_body() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            body = b'{"model": "fake+environment", "messages": [], "odd": 1}'
            answer = await client.post(CHAT, content=body, headers={"x-request-id": "mine"})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
            assert answer.headers["x-request-id"] == "mine"
            told = answer.json()
            known = {told.pop("answer_id"), ""}
            assert told == {"route": CHAT, "request_id": "mine", "model": "fake", "adapter": ""}
            assert runtime.launched_with == {"request": body}
            assert runtime.inferlet(answer.headers["x-inferlet-id"]).status == "finished"
            for own in ("", "x" * 129, "\xe4", "mine"):
                answer = await client.post(COMPLETIONS, content=body, headers={b"x-request-id": own.encode("latin-1")})
                assert answer.json()["request_id"] == answer.headers["x-request-id"] != ""
                assert (answer.headers["x-request-id"] == own) == (own == "mine")
                assert answer.json()["answer_id"] not in known, "also where a client calls two requests the same"
                known.add(answer.json()["answer_id"])

    serve_async(test)


def test_its_priority_is_the_one_of_its_inferlet() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            for priority in (-2, 0, "high"):
                await client.post(CHAT, json={"model": "+environment", "priority": priority})
        assert runtime.priorities == [-2]

    serve_async(test)


def test_a_request_has_one_id(caplog: pytest.LogCaptureFixture) -> None:
    """Its program, its answer and its line in the log say the same."""
    caplog.set_level(logging.INFO, "pie.requests")

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            own = ("", "with a space")
            answers = [
                await client.post(CHAT, json={"model": "+environment"}, headers={"x-request-id": one}) for one in own
            ]
        ids = [answer.json()["request_id"] for answer in answers]
        assert ids[0]
        assert ids[1] == own[1]
        assert [answer.headers["x-request-id"] for answer in answers] == ids
        assert [record.about["request"] for record in caplog.records] == ids  # type: ignore[attr-defined]

    serve_async(test, log_format="json")


def test_a_refusal_says_when_to_try_again() -> None:
    for route in (CHAT, "/v1/messages"):
        answer = dialect_of(route).answer(Refused(503, "too many requests wait", "overloaded", retry_after=7))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")


def test_an_event_has_its_number_where_it_asks_for_it() -> None:
    asks, quotes = '{"type": "a", "sequence_number": -1}', '{"type": "a", "b": "\\"sequence_number\\": -1}"}'
    told = dialect_of("/v1/responses")
    assert told.event(asks, 7) == b'event: a\ndata: {"type": "a", "sequence_number": 7}\n\n'
    assert told.event(quotes, 7) == f"event: a\ndata: {quotes}\n\n".encode()
    assert dialect_of(CHAT).event(asks, 7) == f"data: {asks}\n\n".encode()


def test_messages_are_the_stream() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            body = {"model": "+environment", "stream": True}
            answer = await client.post(COMPLETIONS, json=body, headers={"x-request-id": "mine"})
            assert (answer.status_code, answer.headers["content-type"][:17]) == (200, "text/event-stream")
            events = answer.text.split("\n\n")
            del events[2]  # the identifier of the answer
            assert events == [*(f"data: {value}" for value in (COMPLETIONS, "mine", "fake", "", "[DONE]")), ""]

    serve_async(test)


def test_lines_of_a_log_are_not_for_the_client() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            answer = await client.post(CHAT, json={"model": "fake+logs", "stream": True})
            assert (answer.status_code, answer.text) == (200, "data: said\n\ndata: [DONE]\n\n")
            assert len(runtime.inferlet("i1").logs()) == 2000

    serve_async(test)


def test_a_stream_of_a_program_that_sends_nothing_is_refused() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            answer = await client.post(CHAT, json={"model": "fake+answer", "stream": True})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
            assert "does not stream" in answer.json()["error"]["message"]
            assert (await client.post(CHAT, json={"model": "fake+answer"})).json() == {"answer": 1}

    serve_async(test)


def test_an_error_of_a_program() -> None:
    told = {"code": "too_many", "message": "n is too large", "type": "invalid_request_error", "param": "n"}

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            for stream in (False, True):
                answer = await client.post(CHAT, json={"model": "fake+refuse", "stream": stream})
                assert (answer.status_code, answer.json()) == (422, {"error": told})
            late = {"x-request-id": "late"}
            answer = await client.post(CHAT, json={"model": "fake+refuse", "stream": True}, headers=late)
            assert answer.status_code == 200
            message, error, done = answer.text.strip().split("\n\n")
            assert (message, done) == ("data: one\ndata: two", "data: [DONE]")
            assert httpx.Response(200, text=error.removeprefix("data: ")).json() == {"error": told}

    serve_async(test)


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"json": {"model": "fake+fail"}}, 500, "program-failed", None),
        ({"json": {"model": "fake+fail", "stream": True}}, 500, "program-failed", None),
        ({"json": {"model": "nobody"}}, 404, "model_not_found", "model"),
        ({"json": {"model": "fake+nothing"}}, 404, "model_not_found", "model"),
        ({"json": {"model": ["fake"]}}, 400, "bad-request", "model"),
        ({"json": {"stream": "yes"}}, 400, "bad-request", "stream"),
        ({"json": []}, 400, "bad-request", None),
        ({"content": b'{"model": "fake+hel'}, 400, "bad-request", None),
        ({"content": b" " * 5000}, 413, "too-large", None),
    ],
)
def test_refusals(body: dict[str, Any], status: int, code: str, param: str | None) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            answer = await client.post(CHAT, **body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
            assert "no good" not in answer.text

    serve_async(test, max_blob_bytes=4096)


@pytest.mark.parametrize(
    "body", [{"model": "+wait"}, {"model": "+wait", "stream": True}, {"model": "+tick", "stream": True}]
)
def test_a_client_that_leaves_ends_its_inferlet(body: dict[str, Any]) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            request = asyncio.create_task(client.post(CHAT, json=body))
            while not runtime.inferlets():
                await asyncio.sleep(0.005)
            request.cancel()
            await asyncio.wait([request])
            assert await ended(runtime, "i1") == "terminated"
            assert runtime.inferlet("i1").error == "the client of the request that it served has left"

    serve_async(test)


@pytest.mark.parametrize("model", ["nothing", "+fail"])
def test_what_is_refused_is_freed_at_once(model: str) -> None:
    """With its body, which may be large: a full collection may be minutes away."""

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            with without_collections(ServedResponse) as left:
                assert (await client.post(CHAT, json={"model": model})).is_error
                for _ in range(20):
                    await asyncio.sleep(0)  # until the server has had its last turn of the request
                assert not left()

    serve_async(test)


def test_what_is_too_much_is_refused_at_once() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            first = asyncio.create_task(client.post(CHAT, json={"model": "+wait"}))
            while not runtime.inferlets():
                await asyncio.sleep(0.005)
            others = [asyncio.create_task(client.post(CHAT, json={"model": "+environment"})) for _ in range(2)]
            done, (waiting,) = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
            refused = done.pop().result()
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            first.cancel()
            assert (await waiting).status_code == 200
            assert await ended(runtime, "i1") == "terminated"

    serve_async(test, max_serving=1, max_waiting=1)


@pytest.mark.parametrize("stream", [False, True])
def test_after_an_eviction_fewer_are_served(stream: bool) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            two = []
            for number in (1, 2):
                two.append(asyncio.create_task(client.post(CHAT, json={"model": "+wait", "stream": stream})))
                while len(runtime.inferlets()) < number:
                    await asyncio.sleep(0.005)
            runtime.inferlet("i2").end("evicted", None, "others need its memory")
            assert (await two[1]).json()["error"]["message"].startswith("other requests needed")
            refused = await client.post(CHAT, json={"model": "+environment"})
            assert refused.json()["error"]["message"].startswith("too many requests wait")
            runtime.inferlet("i1").end("finished", "1", None)
            await two[0]
            assert (await client.post(CHAT, json={"model": "+environment"})).status_code == 200

    serve_async(test, max_serving=2, max_waiting=0)


@pytest.mark.parametrize("program", ["wait", "tick"])
def test_a_budget_of_the_day_that_ends_within_an_answer(program: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        runtime.meters.use({"default": Budget(tokens_per_day=7)})
        async with http(url) as client:
            streamed, begun = program == "tick", asyncio.Event()

            async def ask() -> tuple[httpx.Response, str]:
                async with client.stream("POST", CHAT, json={"model": f"+{program}", "stream": streamed}) as answer:
                    text = ""
                    async for part in answer.aiter_text():
                        text += part
                        begun.set()
                    return answer, text

            request = asyncio.create_task(ask())
            while not (begun.is_set() if streamed else runtime.inferlets()):
                await asyncio.sleep(0.005)
            runtime.meter.generates(7, 0.0)
            runtime.inferlet("i1").end("exceeded", None, "quota-exceeded")
            answer, text = await request
            if streamed:
                error = text.split("\n\n")[-3]
                assert '"code":"rate-limited"' in error
                assert "7 tokens of today" in error
            else:
                assert (answer.status_code, json.loads(text)["error"]["code"]) == (429, "rate-limited")
                assert answer.headers["retry-after"] == "3600"

    serve_async(test)


def test_an_inferlet_that_exceeds_a_limit_of_its_own() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            request = asyncio.create_task(client.post(CHAT, json={"model": "+wait"}))
            while not runtime.inferlets():
                await asyncio.sleep(0.005)
            runtime.inferlet("i1").end("exceeded", None, "quota-exceeded")
            assert (await request).json()["error"]["code"] == "program-exceeded"

    serve_async(test)


def test_one_that_is_ended_by_somebody_else() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            request = asyncio.create_task(client.post(CHAT, json={"model": "+wait"}))
            while not runtime.inferlets():
                await asyncio.sleep(0.005)
            await client.delete("/v1/inferlets/i1")
            answer = await request
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "terminated")

    serve_async(test)
