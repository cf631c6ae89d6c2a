"""Requests that are too many, too large or too deep: refused, or carried out with room for others in between."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter

import httpx
import pytest
import websockets

from pie_control.http_server import views
from pie_control.http_server.guard import json_limit
from pie_control.http_server.messages import MAX_REQUESTS, encode
from pie_control.http_server.session.send_buffer import MAX_REPLY_BYTES, SendBuffer
from pie_control.http_server.session.session import REQUESTS_IN_A_TURN
from pie_control.registry.entry import InferletInfo
from tests.helpers.fake_inferlets import FakeInferlet
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.sessions import exchange, frame_of, open_session


class Turns:
    """Counts turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def stop(self) -> None:
        self._task.cancel()


class CountedApi(FakeServerApi):
    """Notes in which turn it listed its inferlets."""

    turns: Turns

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[int] = []

    def inferlets(self) -> tuple[InferletInfo, ...]:
        self.listed.append(self.turns.count)
        return super().inferlets()


def test_between_two_requests_of_a_frame_others_get_their_turn() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        api = runtime
        assert isinstance(api, CountedApi)
        async with open_session(url, max_size=None) as socket:
            api.turns = Turns()
            await socket.send(json.dumps([{"type": "inferlets", "id": number} for number in range(MAX_REQUESTS)]))
            replies: list[int] = []
            while len(replies) < MAX_REQUESTS:
                replies += [each["id"] for each in await frame_of(socket)]
            api.turns.stop()
            assert replies == list(range(MAX_REQUESTS))
            assert len(set(api.listed)) == len(api.listed)  # no two in one turn

    serve_async(test, CountedApi())


class LookedUpApi(FakeServerApi):
    """Notes in which turn an inferlet was looked for."""

    turns: Turns

    def __init__(self) -> None:
        super().__init__()
        self.looked: list[int] = []

    def inferlet(self, id: str) -> FakeInferlet:
        self.looked.append(self.turns.count)
        return super().inferlet(id)


def test_messages_to_inferlets_share_a_turn_up_to_a_number() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        api = runtime
        assert isinstance(api, LookedUpApi)
        async with open_session(url, max_size=None) as socket:
            api.turns = Turns()
            count = 3 * REQUESTS_IN_A_TURN
            requests = [{"type": "send", "id": number, "inferlet": "i1", "text": ""} for number in range(count)]
            await socket.send(json.dumps(requests))
            replies: list[int] = []
            while len(replies) < count:
                replies += [each["id"] for each in await frame_of(socket)]
            api.turns.stop()
            assert replies == list(range(count))
            assert sorted(Counter(api.looked).values()) == [REQUESTS_IN_A_TURN] * 3

    serve_async(test, LookedUpApi())


def test_a_listing_is_made_one_by_one_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def note(info: object) -> bytes:
        threads.append(threading.current_thread())
        return encode(info)

    monkeypatch.setattr(views, "encode", note)

    async def test(url: str, runtime: FakeServerApi) -> None:
        for _ in range(2):
            await runtime.launch("wait")
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for path in ("/v1/inferlets", "/v1/inferlets?of_all=true"):
                assert [one["id"] for one in (await client.get(path)).json()] == ["i1", "i2"]
        assert len(threads) == 4
        assert threading.main_thread() not in threads

    serve_async(test)


def test_all_who_ask_in_one_turn_share_one_listing() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        from pie_control.http_server.views import InferletListing

        api = runtime
        assert isinstance(api, CountedApi)
        api.turns = Turns()
        listing = InferletListing(api)  # type: ignore[arg-type]
        first, second = await asyncio.gather(listing.encoded(), listing.encoded())
        assert first is second
        await runtime.launch("hello")
        assert b"i1" in bytes(await listing.encoded())
        api.turns.stop()
        assert len(api.listed) == 2

    serve_async(test, CountedApi())


def test_a_client_that_reads_no_replies_gets_no_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    put = SendBuffer.put
    waiting: list[int] = []

    def noted(buffer: SendBuffer, reply: object) -> None:
        put(buffer, reply)
        waiting.append(buffer._reply_bytes)

    async def test(url: str, runtime: FakeServerApi) -> None:
        for _ in range(200):
            await runtime.launch("wait")
        frame, frames = json.dumps([{"type": "inferlets", "id": number} for number in range(100)]), 10
        async with open_session(url, max_size=None, max_queue=1) as socket:
            (reply,) = await exchange(socket, {"type": "inferlets", "id": 1})
            monkeypatch.setattr(SendBuffer, "put", noted)
            sending = asyncio.create_task(send_all(socket, [frame] * frames))
            before = -1
            while len(waiting) != before:  # until no more requests are carried out
                before = len(waiting)
                await asyncio.sleep(0.2)
            assert before < 100 * frames
            assert MAX_REPLY_BYTES < max(waiting) <= MAX_REPLY_BYTES + len(json.dumps(reply))
            replies = 0
            while replies < 100 * frames:
                replies += len(await frame_of(socket))
            await sending

    serve_async(test)


async def send_all(socket: websockets.ClientConnection, frames: list[str]) -> None:
    for frame in frames:
        await socket.send(frame)


def test_refusals_of_frames_that_nobody_reads_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    put, room = SendBuffer.put, asyncio.Event()
    puts = 0

    def counted(buffer: SendBuffer, reply: object) -> None:
        nonlocal puts
        puts += 1
        put(buffer, reply)

    async def closed(_: SendBuffer) -> None:
        await room.wait()

    monkeypatch.setattr(SendBuffer, "put", counted)
    monkeypatch.setattr(SendBuffer, "room", closed)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            await socket.send("no json")
            await asyncio.sleep(0.1)
            assert puts == 0
            room.set()
            assert (await frame_of(socket))[0]["error"]["code"] == "bad-request"

    serve_async(test)


@pytest.mark.parametrize(
    "frame",
    [
        json.dumps([{"type": "models", "id": number} for number in range(MAX_REQUESTS + 1)]),
        "[" * 100_000,
        '{"type": "launch", "id": 1, "program": "x", "arguments": ' + "[" * 100_000,
        '{"type": "models", "id": 1, "more": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}",
        '{"type": "terminate", "id": 1, "inferlet": "i1", "reason": "\\ud800"}',
        b'{"type": "terminate", "id": 1, "inferlet": "\xff"}',
        b'{"type": "terminate", "id": "\xff"}',
    ],
    ids=["many", "deep list", "deep arguments", "deep object", "surrogate", "no UTF-8", "id in no UTF-8"],
)
def test_a_frame_that_is_too_much_is_refused_and_the_session_goes_on(frame: str | bytes) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            await socket.send(frame)
            (refusal,) = await frame_of(socket)
            assert (refusal["type"], refusal["error"]["code"]) == ("error", "bad-request")
            assert [each["type"] for each in await exchange(socket, {"type": "models", "id": 4})] == ["reply"]

    serve_async(test)


def test_a_frame_that_is_too_long_ends_its_session_with_a_reason() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url) as socket:
            await socket.send("x" * (json_limit(100_000) + 1))
            with pytest.raises(websockets.ConnectionClosedError) as caught:
                await frame_of(socket)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009

    serve_async(test, max_message_bytes=100_000)


@pytest.mark.parametrize("body", ["[" * 60_000, '{"program": "x", "arguments": ' + "[" * 60_000, '{"a":' * 10_000])
def test_a_body_that_nests_deeply_is_refused(body: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            answer = await client.post("/v1/inferlets", content=body, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad-request")
            assert (await client.get("/v1/health")).status_code == 200

    serve_async(test)


def test_half_of_a_surrogate_pair_in_a_body_is_told() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            body = json.dumps({"program": "hello", "arguments": ["\ud83d"]})
            answer = await client.post("/v1/inferlets", content=body, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad-request")
            assert "half of a surrogate pair" in answer.json()["error"]["message"]
        async with open_session(url) as socket:
            await socket.send(json.dumps({"type": "terminate", "id": 1, "inferlet": "i1", "reason": "\ud83d"}))
            assert "half of a surrogate pair" in (await frame_of(socket))[0]["error"]["message"]

    serve_async(test)


def test_of_a_body_with_many_faults_the_first_is_told() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS) as client:
            body = {"program": "hello", "arguments": [0] * 500_000}
            answer = await client.post("/v1/inferlets", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad-request")
            assert "$.arguments[0]" in answer.json()["error"]["message"]
            assert len(answer.content) < 1000
            described = (await client.get("/openapi.json")).json()["paths"]["/v1/inferlets"]["post"]["requestBody"]
            assert described["content"]["application/json"]["schema"]["required"] == ["program"]

    serve_async(test)
