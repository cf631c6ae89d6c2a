"""The HTTP API over a fake runtime: routes, errors, server-sent events, sessions."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
import websockets
from pydantic import TypeAdapter

from pie_control.http_server import views
from pie_control.http_server.failures import NOT_SERVED
from pie_control.http_server.messages import encode
from pie_control.http_server.protocols import HttpProtocol
from pie_control.http_server.routes import event_stream, failures
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.sessions import exchange, frame_of, open_session, until


def http(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS)


async def ended(runtime: FakeServerApi, id: str) -> str:
    """Waits until an inferlet has ended and returns its status."""
    while runtime.inferlet(id).ended is None:
        await asyncio.sleep(0.005)
    return runtime.inferlet(id).status


# ---- routes --------------------------------------------------------------------------------------------------------


def test_upload_launch_and_look() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            program = (await client.post("/v1/programs", params={"name": "mine"}, content=b"x = 1")).json()
            assert program["name"] == "mine"
            assert program in (await client.get("/v1/programs")).json()
            assert (await client.get(f"/v1/programs/{program['program']}")).json() == program
            launched = await client.post("/v1/inferlets", json={"program": "hello", "arguments": ["Ada"]})
            assert launched.status_code == 201
            id = launched.json()["id"]
            await ended(runtime, id)
            info = (await client.get(f"/v1/inferlets/{id}")).json()
            assert (info["status"], info["result"]) == ("finished", "1")
            assert [each["id"] for each in (await client.get("/v1/inferlets")).json()] == [id]
            assert [line["text"] for line in (await client.get(f"/v1/inferlets/{id}/logs")).json()] == ["greeting"]

    serve_async(test)


def test_one_request_launches_and_streams() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            path, body = "/v1/inferlets?stream=true", {"program": "hello", "arguments": ["Ada"]}
            async with client.stream("POST", path, json=body) as answer:
                assert (answer.status_code, answer.headers["content-type"][:17]) == (201, "text/event-stream")
                text = "".join([text async for text in answer.aiter_text()])
            assert [line for line in text.splitlines() if line.startswith("event")] == [
                "event: log",
                "event: message",
                "event: ended",
            ]
            assert '{"text":"Hello, Ada! "}' in text
            info = (await client.get(answer.headers["location"])).json()
            assert (info["status"], info["result"]) == ("finished", "1")
            refused = await client.post(path, json={"program": "none"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown-name")

    serve_async(test)


@pytest.mark.parametrize("program", ["wait", "tick"])
def test_an_inferlet_ends_with_the_stream_that_launched_it(program: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            async with client.stream("POST", "/v1/inferlets?stream=true", json={"program": program}) as answer:
                id = answer.headers["location"].rpartition("/")[2]
            assert await ended(runtime, id) == "terminated"
            assert runtime.inferlet(id).error == "the client that streamed it has left"

    serve_async(test)


def test_delete_a_program() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            first = (await client.post("/v1/programs", params={"name": "a/b"}, content=b"x = 1")).json()
            second = (await client.post("/v1/programs", params={"name": "mine"}, content=b"x = 2")).json()
            assert (await client.delete("/v1/programs/mine")).json() == second
            assert (await client.delete("/v1/programs/a%2Fb")).json() == first
            left = (await client.get("/v1/programs")).json()
            assert [each for each in left if each in (first, second)] == []
            again = await client.delete("/v1/programs/mine")
            assert (again.status_code, again.json()["error"]["code"]) == (404, "unknown-name")

    serve_async(test)


def test_an_upload_that_breaks_off_leaves_nothing() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        before = runtime.programs()
        _, _, port = url.rpartition(":")
        _, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"POST /v1/programs?name=half HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\nx = 1\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with http(url) as client:
            assert (await client.post("/v1/programs", params={"name": "whole"}, content=b"x = 2")).status_code == 200
        assert [each.name for each in runtime.programs() if each not in before] == ["whole"]
        assert runtime.uploads == 1

    serve_async(test)


def test_send_and_terminate() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            id = (await client.post("/v1/inferlets", json={"program": "echo"})).json()["id"]
            assert (await client.post(f"/v1/inferlets/{id}/messages", json={"text": "hi"})).status_code == 202
            assert (await client.delete(f"/v1/inferlets/{id}")).json()["status"] == "terminated"
            refused = await client.post(f"/v1/inferlets/{id}/messages", json={"text": "hi"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")

    serve_async(test)


def test_system_routes() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            assert (await client.get("/v1/health")).json()["status"] == "ok"
            runtime.outages = lambda: ("worker 1 of model fake: restarting",)  # type: ignore[method-assign]
            health = (await client.get("/v1/health")).json()
            assert (health["status"], health["outages"]) == ("degraded", ["worker 1 of model fake: restarting"])
            models = (await client.get("/v1/models")).json()
            (model,) = models["data"]
            assert (models["object"], model["object"], model["id"], model["owned_by"]) == (
                "list",
                "model",
                "fake",
                "pie",
            )
            assert isinstance(model["created"], int)
            assert model["has_chat_template"] is True
            assert (await client.get("/v1/models/fake")).json() == model
            assert (await client.get("/v1/models/fake+hello")).json()["id"] == "fake+hello"
            assert (await client.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"
            assert (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200
            assert (await client.head("/health")).status_code == (await client.head("/ready")).status_code == 200
            runtime.is_ready = False
            ready = await client.get("/ready")
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
            assert ready.json()["error"]["code"] == "worker-unavailable"
            assert "tokenizer" not in model
            assert (await client.get("/v1/statistics")).json()["inferlets"] == {"launched": 0}
            paths = (await client.get("/openapi.json")).json()["paths"]
            undescribed = [path for path, item in paths.items() for each in item.values() if not each["description"]]
            assert len(paths) >= 9
            assert undescribed == []

    serve_async(test)


def test_long_answers_are_made_beside_the_loop_or_once(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = list[bool]()
    described = list[type]()

    def encode_there(value: object) -> bytes:
        beside.append(threading.current_thread() is not threading.main_thread())
        return encode(value)

    def describe(kind: type) -> TypeAdapter[Any]:
        described.append(kind)
        return TypeAdapter(kind)

    monkeypatch.setattr(views, "encode", encode_there)
    monkeypatch.setattr(failures, "TypeAdapter", describe)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            id = (await client.post("/v1/inferlets", json={"program": "hello", "arguments": ["Ada"]})).json()["id"]
            await ended(runtime, id)
            for path in ("/v1/usage", "/v1/audit", f"/v1/inferlets/{id}/logs", "/v1/inferlets"):
                assert (await client.get(path)).status_code == 200
                assert beside == [True], path
                beside.clear()
            first, second = [(await client.get("/openapi.json")).content for _ in range(2)]
            assert (first == second, len(described)) == (True, 1)

    serve_async(test)


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/v1/inferlets/i9", {}, 404, "unknown-name"),
        ("DELETE", "/v1/inferlets/i9", {}, 404, "unknown-name"),
        ("GET", "/v1/inferlets/i9/events", {}, 404, "unknown-name"),
        ("GET", "/v1/programs/abc", {}, 404, "unknown-name"),
        ("POST", "/v1/inferlets", {"json": {"program": "nothing"}}, 404, "unknown-name"),
        ("POST", "/v1/inferlets", {"json": {"program": "hello", "argument": []}}, 400, "bad-request"),
        ("POST", "/v1/inferlets", {"content": b"{"}, 400, "bad-request"),
        ("POST", "/v1/inferlets", {"content": b'{"program": "\xff"}'}, 400, "bad-request"),
        ("POST", "/v1/programs?name=bad.py", {"content": b"def"}, 422, "bad-program"),
        ("POST", "/v1/programs", {"content": b"#" * 2000}, 413, "too-large"),
        ("POST", "/v1/inferlets", {"content": b" " * 70_000}, 413, "too-large"),
        ("GET", "/v1/nothing", {}, 404, "not-found"),
        ("PUT", "/v1/models", {}, 405, "method-not-allowed"),
        ("GET", "/v1/models", {"headers": {"origin": "http://elsewhere.example"}}, 403, "forbidden"),
    ],
)
def test_every_failure_has_one_shape(method: str, path: str, options: dict[str, Any], status: int, code: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            answer = await client.request(method, path, **options)
            assert answer.status_code == status
            assert list(answer.json()) == ["error"]
            assert answer.json()["error"]["code"] == code
            assert answer.json()["error"].keys() == {"code", "message", "type", "param"}
            assert len(answer.json()["error"]["message"]) > 8

    serve_async(test, max_program_bytes=1024, max_message_bytes=100)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/chat/completions", "the base URL of a client of OpenAI's API ends in /v1"),
        ("/responses/some", "the base URL of a client of OpenAI's API ends in /v1"),
        ("/v1/v1/messages", "the base URL of a client of Anthropic's API has no /v1 at its end"),
        ("/v2/nothing", "/docs shows what there is"),
        ("/v1/nothing/", "/docs shows what there is"),
    ],
)
def test_a_wrong_base_url_of_a_client_is_told(path: str, told: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            answer = await client.post(path, json={})
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == f"there is no {path} here: {told}"

    serve_async(test)


@pytest.mark.parametrize(
    ("method", "path", "there_is"),
    [("GET", "/v1/models/", "/v1/models?a=b"), ("POST", "/v1/messages/", "/v1/messages?a=b")],
)
def test_a_slash_too_many_is_told_of_and_left_out(method: str, path: str, there_is: str) -> None:
    """By a path alone: behind a proxy with TLS, the address of the server is not that of the client."""

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            answer = await client.request(method, f"{path}?a=b")
            assert (answer.status_code, answer.headers["location"]) == (307, there_is)
            assert answer.json()["error"]["message"] == f"there is no {path} here, but {path[:-1]}"

    serve_async(test)


def test_a_route_that_is_not_served_is_no_method_of_another_one() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            for path in NOT_SERVED:
                answer = await client.post(path, json={})
                assert (answer.status_code, "is not served" in answer.text) == (404, True)

    serve_async(test)


def test_a_bug_is_an_internal_error_without_details() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        def broken() -> None:
            raise RuntimeError("secret")

        runtime.statistics = broken  # type: ignore[method-assign, assignment]
        async with http(url) as client:
            answer = await client.get("/v1/statistics")
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "internal"
            assert "secret" not in answer.text

    serve_async(test)


# ---- server-sent events --------------------------------------------------------------------------------------------


def parse_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def test_events_stream_to_the_end_and_tell_the_end_again() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            id = (await client.post("/v1/inferlets", json={"program": "hello", "arguments": ["A", "B"]})).json()["id"]
            events = parse_events((await client.get(f"/v1/inferlets/{id}/events")).text)
            assert [kind for kind, _ in events] == ["log", "message", "message", "ended"]
            assert events[1][1] == {"text": "Hello, A! "}
            assert events[-1][1] == {"status": "finished", "result": "2", "error": None}
            again = parse_events((await client.get(f"/v1/inferlets/{id}/events")).text)
            assert again == events[-1:]

    serve_async(test)


def test_events_that_were_on_their_way_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "KEPT_BYTES", 200)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            id = (await client.post("/v1/inferlets", json={"program": "echo"})).json()["id"]
            path, inferlet = f"/v1/inferlets/{id}/events", runtime.inferlet(id)
            for text in "abcdef":
                inferlet.send(text)
            async with client.stream("GET", path) as stream:
                lines = stream.aiter_lines()
                while await anext(lines) != "id: 6":
                    pass
            inferlet.send("g")
            inferlet.send("stop")
            await ended(runtime, id)
            while (answer := await client.get(path, headers={"last-event-id": "4"})).status_code == 409:
                await asyncio.sleep(0.005)
            events = parse_events(answer.text)
            assert [told.get("text") for _, told in events] == ["e", "f", "g", None]
            for last in ("0", "9", "null", "9" * 5000):
                refused = await client.get(path, headers={"last-event-id": last})
                assert refused.status_code == 409
                assert refused.json()["error"]["message"].startswith("Last-Event-ID: the events from ")
            assert parse_events((await client.get(path, headers={"last-event-id": "7"})).text) == events[-1:]

    serve_async(test)


def test_a_client_that_comes_back_need_not_wait_for_the_end_of_its_dead_connection() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            id = (await client.post("/v1/inferlets", json={"program": "echo"})).json()["id"]
            path, inferlet = f"/v1/inferlets/{id}/events", runtime.inferlet(id)
            for text in "ab":
                inferlet.send(text)
            async with client.stream("GET", path) as dead:
                lines = dead.aiter_lines()
                while await anext(lines) != "id: 2":
                    pass
                assert (await client.get(path)).status_code == 409  # another client
                async with client.stream("GET", path, headers={"last-event-id": "1"}) as back:
                    inferlet.send("c")
                    assert "id: 3" not in [line async for line in lines]
                    inferlet.send("stop")
                    events = parse_events("\n".join([line async for line in back.aiter_lines()]))
            assert [told.get("text") for _, told in events] == ["b", "c", None]
            assert parse_events((await client.get(path)).text) == events[-1:]

    serve_async(test)


def test_a_second_reader_is_refused_and_a_reader_that_leaves_lets_go() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            id = (await client.post("/v1/inferlets", json={"program": "echo"})).json()["id"]
            path = f"/v1/inferlets/{id}/events"
            async with client.stream("GET", path) as stream:
                runtime.inferlet(id).send("first")
                lines = stream.aiter_lines()
                assert [await anext(lines) for _ in range(2)] == ["id: 1", "event: message"]
                assert (await client.get(path)).status_code == 409
            await client.post(f"/v1/inferlets/{id}/messages", json={"text": "stop"})
            await ended(runtime, id)
            while (answer := await client.get(path)).status_code == 409:
                await asyncio.sleep(0.005)
            assert parse_events(answer.text)[-1][0] == "ended"

    serve_async(test)


def test_a_launch_whose_client_has_left_meanwhile_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        came, left = asyncio.Event(), asyncio.Event()
        launch, lost = runtime.launch, HttpProtocol.connection_lost

        async def launch_late(*args: Any, **options: Any) -> Any:
            came.set()
            await left.wait()
            return await launch(*args, **options)

        def lose(connection: HttpProtocol, error: Exception | None) -> None:
            lost(connection, error)
            left.set()

        runtime.launch = launch_late  # type: ignore[method-assign]
        monkeypatch.setattr(HttpProtocol, "connection_lost", lose)
        async with http(url) as client:
            request = asyncio.create_task(client.post("/v1/inferlets", json={"program": "wait"}))
            await came.wait()
            request.cancel()
            await asyncio.wait([request])
            while not runtime.inferlets():
                await asyncio.sleep(0)
            assert await ended(runtime, "i1") == "terminated"

    serve_async(test)


# ---- sessions ------------------------------------------------------------------------------------------------------


def test_session_launches_and_the_reply_comes_before_the_events() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            launch = {"type": "launch", "id": 7, "program": "hello", "arguments": ["A"], "logs": True}
            await socket.send(json.dumps(launch))
            messages = await until(socket, "ended")
            assert [each["type"] for each in messages] == ["reply", "log", "message", "ended"]
            assert messages[0]["id"] == 7
            inferlet = messages[0]["value"]
            time = messages[1].pop("time")
            assert messages[1] == {"type": "log", "inferlet": inferlet, "stream": "log", "text": "greeting"}
            assert messages[2] == {"type": "message", "inferlet": inferlet, "text": "Hello, A! "}
            assert messages[3] == {"type": "ended", "inferlet": inferlet, "status": "finished", "result": "1"}
            (reply,) = await exchange(socket, {"type": "logs", "id": 8, "inferlet": inferlet})
            assert reply["value"] == [{"time": time, "stream": "log", "text": "greeting", "number": 1}]
            (reply,) = await exchange(socket, {"type": "logs", "id": 9, "inferlet": inferlet, "after": 1})
            assert reply["value"] == []

    serve_async(test)


def test_events_of_one_loop_turn_travel_in_one_frame() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            (reply,) = await exchange(socket, {"type": "launch", "id": 1, "program": "burst"})
            await socket.send(json.dumps({"type": "send", "id": 2, "inferlet": reply["value"], "text": "100"}))
            first = await frame_of(socket)
            rest = first[1:] or await frame_of(socket)  # the reply may travel alone
            assert first[0]["type"] == "reply"
            assert [each["text"] for each in rest] == list(map(str, range(100)))

    serve_async(test)


def test_session_answers_every_look_up() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            (reply,) = await exchange(socket, {"type": "launch", "id": 1, "program": "wait"})
            id = reply["value"]
            kinds = ("inferlets", "programs", "models", "statistics")
            requests: list[dict[str, Any]] = [{"type": kind, "id": number} for number, kind in enumerate(kinds)]
            requests += [{"type": kind, "id": 10, "inferlet": id} for kind in ("inferlet", "logs")]
            requests += [{"type": "program", "id": 11, "program": "0" * 64}]
            replies = await exchange(socket, *requests)
            while len(replies) < len(requests):
                replies += await frame_of(socket)
            values: list[Any] = [each.get("value") for each in replies]
            assert values[0][0]["id"] == values[4]["id"] == id
            assert values[2][0]["name"] == "fake"
            assert values[3]["inferlets"] == {"launched": 1}
            assert values[5:] == [[], None]

    serve_async(test)


@pytest.mark.parametrize(
    ("frame", "id", "code"),
    [
        ("no json", None, "bad-request"),
        ("[]]", None, "bad-request"),
        ('{"type": "launch", "id": 3}', 3, "bad-request"),
        ('{"type": "fly", "id": 3}', 3, "bad-request"),
        ('{"type": "launch", "id": 3, "program": 5}', 3, "bad-request"),
        ('{"type": "launch", "id": 3, "program": "nothing"}', 3, "unknown-name"),
        ('{"type": "send", "id": 3, "inferlet": "i9", "text": ""}', 3, "unknown-name"),
        ('{"type": "attach", "id": 3, "inferlet": "i9"}', 3, "unknown-name"),
        ('{"type": "detach", "id": 3, "inferlet": "i9"}', 3, "unknown-name"),
        (b"\xff\xfe", None, "bad-request"),
    ],
)
def test_session_refuses_and_goes_on(frame: str | bytes, id: int | None, code: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            await socket.send(frame)
            (refusal,) = await frame_of(socket)
            assert (refusal["type"], refusal["id"], refusal["error"]["code"]) == ("error", id, code)
            assert [each["type"] for each in await exchange(socket, {"type": "models", "id": 4})] == ["reply"]

    serve_async(test)


def test_owned_inferlets_end_with_the_session_and_detached_ones_do_not() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            launches = [
                {"type": "launch", "id": 1, "program": "wait"},
                {"type": "launch", "id": 2, "program": "echo", "detached": True},
                {"type": "launch", "id": 3, "program": "wait"},
            ]
            await socket.send(json.dumps(launches))
            replies: list[dict[str, Any]] = []
            while len(replies) < 3:
                replies += await frame_of(socket)
            owned, detached, given_up = (each["value"] for each in sorted(replies, key=lambda each: each["id"]))
            await exchange(socket, {"type": "detach", "id": 4, "inferlet": given_up})
        assert await ended(runtime, owned) == "terminated"
        assert "disconnected" in str(runtime.inferlet(owned).error)
        assert runtime.inferlet(detached).ended is runtime.inferlet(given_up).ended is None

    serve_async(test)


def test_the_session_that_launches_a_detached_inferlet_gets_its_events_when_it_attaches() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            launch = {"type": "launch", "id": 1, "program": "hello", "detached": True}
            (reply,) = await exchange(socket, launch)
            assert reply == {"type": "reply", "id": 1, "value": "i1"}
            assert await ended(runtime, "i1") == "finished"
            (answer,) = await exchange(socket, {"type": "models", "id": 2})
            assert answer["type"] == "reply"
            messages = await exchange(socket, {"type": "attach", "id": 3, "inferlet": "i1"})
            assert [each["type"] for each in messages] == ["reply", "message", "ended"]

    serve_async(test)


def test_attach_takes_over_what_nobody_has_read() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        inferlet = await runtime.launch("echo")
        inferlet.send("early")
        await asyncio.sleep(0)
        async with open_session(url) as first, open_session(url) as second:
            attach = {"type": "attach", "id": 1, "inferlet": inferlet.id}
            messages = await exchange(first, attach)
            assert [each["type"] for each in messages] == ["reply", "message"]
            assert (await exchange(first, attach))[0]["error"]["code"] == "bad-request"
            assert (await exchange(second, attach))[0]["error"]["code"] == "conflict"
            await exchange(first, {"type": "detach", "id": 2, "inferlet": inferlet.id})
            assert (await exchange(second, attach))[0]["type"] == "reply"
            runtime.terminate(inferlet.id, "enough")
            assert (await until(second, "ended"))[-1]["error"] == "enough"
            again = await exchange(first, attach)
            assert [each["type"] for each in again] == ["reply", "ended"]

    serve_async(test)


def test_a_launch_whose_client_vanished_is_ended() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        gate = asyncio.Event()
        launch = runtime.launch

        async def slow(program: str, *arguments: Any, **options: Any) -> Any:
            await gate.wait()
            return await launch(program, *arguments, **options)

        runtime.launch = slow  # type: ignore[method-assign]
        async with open_session(url) as socket:
            await socket.send(json.dumps({"type": "launch", "id": 1, "program": "wait"}))
            await exchange(socket, {"type": "models", "id": 2})
        gate.set()
        while not runtime.inferlets():
            await asyncio.sleep(0.005)
        assert await ended(runtime, "i1") == "terminated"

    serve_async(test)


def test_a_session_from_a_foreign_page_is_refused() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        with pytest.raises(websockets.InvalidStatus, match="403"):
            await open_session(url, origin="http://elsewhere.example")

    serve_async(test)
