"""What a slow client costs: nothing but time, and only the inferlets that send to it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import websockets

from pie_control.http_server import connections
from pie_control.http_server.messages import encode
from pie_control.http_server.routes import event_stream
from pie_control.http_server.session.send_buffer import FRAME_BYTES, MAX_REPLY_BYTES, SHARE_BYTES, SendBuffer
from pie_control.inferlets import mailbox
from pie_control.inferlets.events import Event, Message
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.sessions import SHORT, RawSession, exchange, frame_of, open_session, until, until_it_waits

PIECE = 100_000
TOTAL = 200 * PIECE


def flood(id: int, size: int = PIECE, total: int = TOTAL) -> dict[str, Any]:
    return {"type": "launch", "id": id, "program": "flood", "arguments": [str(size), str(total)]}


def numbers(messages: list[dict[str, Any]], inferlet: str) -> list[int]:
    texts = [each["text"] for each in messages if each["type"] == "message" and each["inferlet"] == inferlet]
    return [int(text[:9]) for text in texts]


# ---- sessions ------------------------------------------------------------------------------------------------------


def test_a_flood_arrives_whole_and_a_neighbour_ticks_beside_it() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url, max_size=None, close_timeout=SHORT) as socket:
            await exchange(socket, {"type": "launch", "id": 1, "program": "tick"})
            await socket.send(json.dumps(flood(2)))
            messages = await until(socket, "ended")
            texts = [(each["inferlet"], each["text"]) for each in messages if each["type"] == "message"]
            assert numbers(messages, "i2") == list(range(0, TOTAL, PIECE))
            assert messages[-1]["result"] == str(TOTAL)
            runs = [len(list(run)) for who, run in itertools.groupby(who for who, _ in texts) if who == "i2"]
            assert max(runs) <= 2 * mailbox.IN_FLIGHT_BYTES // PIECE  # what may be under way before others get a turn
            ticks = [int(text) for who, text in texts if who == "i1"]
            assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))

    serve_async(test)


def test_a_client_that_pauses_gets_everything_of_everybody() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url, max_size=None, max_queue=1) as socket:
            await socket.send(json.dumps([flood(1), flood(2), {"type": "launch", "id": 3, "program": "echo"}]))
            while len(runtime.inferlets()) < 3:
                await asyncio.sleep(0.005)
            await until_it_waits(runtime.inferlet("i1").outbox)
            await until_it_waits(runtime.inferlet("i2").outbox)
            kept = [runtime.inferlet(id).outbox.kept_bytes for id in ("i1", "i2")]
            assert max(kept) <= mailbox.IN_FLIGHT_BYTES + 2 * PIECE
            runtime.inferlet("i3").send("hello")
            messages: list[dict[str, Any]] = []
            while sum(each["type"] == "ended" for each in messages) < 2:
                messages += await frame_of(socket)
            assert numbers(messages, "i1") == numbers(messages, "i2") == list(range(0, TOTAL, PIECE))
            echo = next(at for at, each in enumerate(messages) if each.get("text") == "hello")
            assert echo < next(at for at, each in enumerate(messages) if each["type"] == "ended")

    serve_async(test)


def test_a_client_that_reads_byte_by_byte_gets_everything() -> None:
    size, total = 1000, 300_000

    def read(url: str) -> list[dict[str, Any]]:
        with RawSession(url) as session:
            session.send({"type": "launch", "id": 1, "program": "flood", "arguments": [str(size), str(total)]})
            messages: list[dict[str, Any]] = []
            while not messages or messages[-1]["type"] != "ended":
                messages += session.frame()
            return messages

    async def test(url: str, runtime: FakeServerApi) -> None:
        messages = await asyncio.to_thread(read, url)
        assert numbers(messages, "i1") == list(range(0, total, size))
        assert messages[-1]["status"] == "finished"

    serve_async(test)


def test_an_inferlet_that_does_not_wait_hurts_only_itself() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url, max_size=None) as socket:
            await exchange(socket, {"type": "launch", "id": 1, "program": "echo"})
            await socket.send(json.dumps({"type": "launch", "id": 2, "program": "heedless"}))
            messages = await until(socket, "ended")
            assert messages[-1]["status"] == "failed"
            assert "await the future" in messages[-1]["error"]
            sent = sum(len(each["text"]) for each in messages if each["type"] == "message")
            assert mailbox.MAX_KEPT_BYTES - 65536 <= sent <= mailbox.MAX_KEPT_BYTES + 65536
            runtime.inferlet("i1").send("still here")
            assert (await until(socket, "message"))[-1]["text"] == "still here"

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_a_client_that_stops_reading_is_given_up_and_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", HANG_SECONDS)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url, max_size=None, max_queue=1) as socket:
            await socket.send(json.dumps(flood(1)))
            while not runtime.inferlets() or runtime.inferlet("i1").ended is None:
                await asyncio.sleep(0.01)
            assert runtime.inferlet("i1").status == "terminated"
            assert "did not read for 0.5 s" in str(runtime.inferlet("i1").error)
            with pytest.raises(websockets.ConnectionClosedError) as caught:
                await until(socket, "nothing")
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1013, "the client did not read for 0.5 s")

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_a_client_that_never_reads_again_is_cut_off() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url, max_size=None, max_queue=1) as socket:
            await socket.send(json.dumps(flood(1)))
            while not runtime.inferlets() or runtime.inferlet("i1").ended is None:
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                assert (await client.get("/v1/health")).status_code == 200
            await asyncio.sleep(0.2)
            with pytest.raises(websockets.ConnectionClosed):
                await until(socket, "nothing")

    serve_async(test)


# ---- the send buffer -----------------------------------------------------------------------------------------------


class Events:
    """A source of messages, which have an inferlet's name and a size."""

    def __init__(self, name: str, size: int, count: int) -> None:
        self._events: list[Event] = [Message("x" * size, inferlet=name)] * count

    def take(self, items: list[bytes], most: int) -> int:
        size = 0
        while self._events and size < most:
            items.append(encode(self._events.pop()))
            size += len(items[-1])
        return size


def test_sources_share_a_frame() -> None:
    async def test() -> list[bytes]:
        buffer = SendBuffer()
        buffer.add(Events("a", 1000, 1000).take)
        buffer.add(Events("b", 1000, 1000).take)
        return await buffer.take()

    items = asyncio.run(test())
    of_a = sum(b'"a"' in item for item in items)
    assert FRAME_BYTES <= sum(map(len, items)) <= FRAME_BYTES + 2000
    assert abs(2 * of_a - len(items)) <= SHARE_BYTES // 1000 + 1


def test_replies_overtake_events_and_bound_the_requests() -> None:
    async def test() -> None:
        buffer = SendBuffer()
        buffer.add(Events("a", 10, 10).take)
        await asyncio.wait_for(buffer.room(), HANG_SECONDS)
        buffer.put("x" * (MAX_REPLY_BYTES + 1))
        room = asyncio.create_task(buffer.room())
        await asyncio.sleep(0)
        assert not room.done()
        assert len(await buffer.take()) == 1
        await room
        assert len(await buffer.take()) == 10

    asyncio.run(test())


# ---- server-sent events --------------------------------------------------------------------------------------------


@asynccontextmanager
async def event_stream_of(url: str, inferlet: str) -> AsyncIterator[asyncio.StreamReader]:
    """A stream of which nothing is read beyond 64 KiB."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    writer.write(f"GET /v1/inferlets/{inferlet}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    try:
        yield reader
    finally:
        writer.transport.abort()


def test_an_event_stream_that_nobody_reads_makes_the_inferlet_wait() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        inferlet = await runtime.launch("flood", [str(PIECE), str(TOTAL)])
        async with event_stream_of(url, inferlet.id) as reader:
            await reader.readuntil(b"event: message")
            await until_it_waits(inferlet.outbox)
            assert inferlet.outbox.kept_bytes <= mailbox.IN_FLIGHT_BYTES + 2 * PIECE
            assert inferlet.ended is None
            data = b""
            while b"event: ended" not in data[-300:]:
                data += await reader.read(1 << 20)
            assert data.count(b'xxxxxx"}') == TOTAL // PIECE
            assert inferlet.result == str(TOTAL)

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_an_event_stream_that_nobody_reads_ends_and_leaves_the_rest_to_the_next_reader() -> None:
    assert event_stream.COMMENT_SECONDS > 1

    async def test(url: str, runtime: FakeServerApi) -> None:
        inferlet = await runtime.launch("flood", [str(PIECE), str(TOTAL)])
        async with event_stream_of(url, inferlet.id), httpx.AsyncClient(base_url=url, trust_env=False) as client:
            path = f"/v1/inferlets/{inferlet.id}/events"
            while True:  # 409 while the first reader has its claim
                async with client.stream("GET", path) as second:
                    if second.status_code == 200:
                        text = "".join([text async for text in second.aiter_text()])
                        break
                await asyncio.sleep(0.05)
            assert text.endswith('"result":"20000000","error":null}\n\n')

    serve_async(test)
