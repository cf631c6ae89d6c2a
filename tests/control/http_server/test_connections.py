"""Connections that are too many, or that keep the server waiting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
import websockets

from pie_control.client import Client, ServerUnavailable
from pie_control.http_server import connections
from pie_control.http_server.connections import Connections, WatchedConnection
from pie_control.http_server.protocols import MAX_HEAD_BYTES, HttpProtocol
from pie_control.http_server.session.protocol import SessionProtocol
from pie_control.http_server.session.session import Session
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.garbage import without_collections
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.sessions import SHORT, RawSession, exchange, open_session, until_it_waits

HEAD = b"POST /v1/programs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and message of all that comes until the connection ends."""
    head, _, body = (await asyncio.wait_for(reader.read(), HANG_SECONDS)).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def test_what_was_cut_is_freed_at_once() -> None:
    """And not by the next full collection, a minute later or more: a session has what was on its way to its client."""

    async def test(url: str, _: FakeServerApi) -> None:
        for reset in (False, True):
            async with connection_to(url) as (reader, writer):
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        async with open_session(url) as session:
            await exchange(session, {"type": "launch", "id": 1, "program": "heedless"})
            session.transport.abort()
        while left():
            await asyncio.sleep(0.005)

    with without_collections(HttpProtocol, SessionProtocol, Session) as left:
        serve_async(test)


# ---- requests that end where they should not ----


@pytest.mark.parametrize(
    "lengths", [b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\ncontent-length: 65"]
)
def test_a_request_with_two_lengths_ends_its_connection(lengths: bytes) -> None:
    """A proxy that goes by one of them must not be made to pass a second request on."""
    smuggled = b"0\r\n\r\nGET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def test(url: str, _: FakeServerApi) -> None:
        async with connection_to(url) as (reader, writer):
            writer.write(b"POST /v1/blobs HTTP/1.1\r\nHost: localhost\r\n" + lengths + b"\r\n\r\n" + smuggled)
            status, message = await answer_of(reader)
            assert (status, "not both" in message) == (400, True)

    serve_async(test)


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * MAX_HEAD_BYTES, 431, "65536 bytes"),
        (b"GET /" + b"x" * MAX_HEAD_BYTES, 431, "65536 bytes"),
        (b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n", 400, "no well-formed"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\nHost: b.example\r\n\r\n", 400, "one header Host"),
        (b"hello\r\n\r\n", 400, "no well-formed"),
    ],
)
def test_a_head_that_is_too_long_or_none_ends_its_connection(head: bytes, status: int, told: str) -> None:
    async def test(url: str, _: FakeServerApi) -> None:
        async with connection_to(url) as (reader, writer):
            writer.write(head)
            found, message = await answer_of(reader)
            assert (found, told in message) == (status, True)

    serve_async(test)


@pytest.mark.parametrize("path", ["/v1/programs", "/v1/blobs", "/v1/inferlets"])
def test_a_client_that_hangs_up_within_a_body_is_no_fault(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(url: str, _: FakeServerApi) -> None:
        async with connection_to(url) as (_reader, writer):
            writer.write(HEAD.replace(b"/v1/programs", path.encode()) + b"Content-Type: application/json\r\n\r\n{}")
            await writer.drain()
            async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                await http.get("/v1/health")  # so that the other one has come
        while not caplog.records:
            await asyncio.sleep(0.001)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            await http.get("/v1/health")
        assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
            ("DEBUG", f"a client hung up within the body of POST {path}")
        ]

    with caplog.at_level(logging.DEBUG, "pie_control.http_server"):
        serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_a_body_that_does_not_arrive_is_told_of_in_the_form_of_its_route() -> None:
    async def test(url: str, _: FakeServerApi) -> None:
        async with connection_to(url) as (reader, writer):
            writer.write(HEAD.replace(b"/v1/programs", b"/v1/messages") + b"\r\n")
            body = (await reader.read()).partition(b"\r\n\r\n")[2]
            told = json.loads(body)
            assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")

    serve_async(test)


# ---- slow requests -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "head"),
        (b"GET /v1/health HTTP/1.1\r\nX-Slow: ", "head"),
        (HEAD, "head"),
        (HEAD + b"\r\n", "body"),
        (HEAD + b"\r\nx = 1", "body"),
    ],
    ids=["nothing", "header", "no end of head", "no body", "part of body"],
)
def test_a_request_that_does_not_arrive_is_given_up(data: bytes, part: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with connection_to(url) as (reader, writer):
            writer.write(data)
            assert await answer_of(reader) == (408, f"the {part} of the request did not arrive in time: send it again")
        assert runtime.uploads == 0

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_a_head_that_comes_in_drops_is_given_up_too() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with connection_to(url) as (reader, writer):
            answer = asyncio.create_task(answer_of(reader))
            writer.write(b"GET /v1/health HTTP/1.1\r\n")
            while not answer.done():
                writer.write(b"x")
                await asyncio.sleep(0.01)
            assert (await answer)[0] == 408

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_a_second_request_has_as_much_time_as_the_first_and_no_more() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with connection_to(url) as (reader, writer):
            for _ in range(6):  # for longer than one may take
                writer.write(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert await reader.readuntil(b"}")
                await asyncio.sleep(0.1)
            writer.write(b"GET")
            assert (await answer_of(reader))[0] == 408

    serve_async(test)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("final", [True, False], ids=["part of a frame", "part of a message"])
def test_a_frame_that_does_not_arrive_ends_its_session(final: bool) -> None:
    def read(url: str) -> int:
        with RawSession(url) as session:
            for _ in range(3):
                session.send({"type": "models", "id": 1})
                session.frame()
                time.sleep(0.3)  # silence is no fault
            session.send_part(final)
            return session.close_code()

    async def test(url: str, runtime: FakeServerApi) -> None:
        assert await asyncio.to_thread(read, url) == 1013

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_a_body_that_comes_slowly_but_steadily_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SLOWEST_BYTES", 1)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):  # for longer than one without bytes may take
                yield b"# a comment\n"
                await asyncio.sleep(0.01)

        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.post("/v1/programs", content=pieces())).status_code == 200

    serve_async(test)


@pytest.mark.usefixtures("impatient")
def test_what_takes_long_to_answer_is_not_given_up() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        inferlet = await runtime.launch("wait")
        async with open_session(url) as session, connection_to(url) as (reader, writer):
            writer.write(f"GET /v1/inferlets/{inferlet.id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await asyncio.sleep(0.8)
            runtime.terminate(inferlet.id, "enough")
            assert await reader.readuntil(b"event: ended")
            assert [each["type"] for each in await exchange(session, {"type": "models", "id": 1})] == ["reply"]

    serve_async(test)


# ---- slow readers --------------------------------------------------------------------------------------------------


class Played:
    """Protocol and transport of a connection that the test plays: `unsent` bytes wait for the client."""

    watch: WatchedConnection

    def __init__(self) -> None:
        self.unsent = 0
        self.said: list[str] = []
        self.is_cut = self.idle = False

    def is_idle(self) -> bool:
        return self.idle

    def is_reading(self) -> str:
        return ""

    def serves(self) -> None:
        return None

    def say_last(self, status: int, code: str, message: str) -> None:
        self.said.append(message)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_cut = True

    close = abort


@pytest.fixture
def played() -> tuple[Connections, Played]:
    watched, connection = Connections(10, 10), Played()
    watched.open(connection, cast(asyncio.Transport, connection), "192.0.2.1")
    return watched, connection


PATIENCE = connections.STALLED_SECONDS


def test_a_client_that_takes_a_byte_now_and_then_is_never_given_up(played: tuple[Connections, Played]) -> None:
    watched, connection = played
    connection.unsent, now = 1000, connections.clock()
    for _ in range(1000):
        now += 0.9 * PATIENCE
        connection.unsent -= 1
        watched.sweep(now)
    assert connection.said == []


@pytest.mark.parametrize("growth", [0, 6], ids=["nothing new", "pings"])
def test_a_client_that_takes_nothing_is_given_up_then_cut(growth: int, played: tuple[Connections, Played]) -> None:
    watched, connection = played
    connection.unsent, start = 1000, connections.clock()
    seconds = 0.0
    while not connection.said:
        seconds += 1
        connection.unsent += growth
        watched.sweep(start + seconds)
    assert PATIENCE <= seconds < PATIENCE + 3
    assert "did not read" in connection.said[0]
    watched.sweep(connections.clock() + connections.GRACE_SECONDS - 1)
    assert not connection.is_cut
    watched.sweep(connections.clock() + connections.GRACE_SECONDS + 1)
    assert connection.is_cut
    assert len(connection.said) == 1


def test_a_client_that_empties_a_full_buffer_between_sweeps_is_seen(
    played: tuple[Connections, Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, connection = played
    connection.unsent, now = 1000, connections.clock()
    monkeypatch.setattr(connections, "clock", lambda: now)
    for _ in range(10):
        now += 0.9 * PATIENCE
        connection.watch.took()  # as the transport says
        watched.sweep(now)
    assert connection.said == []


def test_a_session_that_is_silent_stays(played: tuple[Connections, Played]) -> None:
    watched, connection = played
    watched.sweep(connections.clock() + 1000 * PATIENCE)
    assert connection.said == []


def test_counts_come_back_to_nothing() -> None:
    watched = Connections(3, 2)
    opened = [Played() for _ in range(4)]
    for connection, address in zip(opened, ("a", "a", "a", "b"), strict=True):
        watched.open(connection, cast(asyncio.Transport, connection), address)
    assert [connection.watch.refused for connection in opened] == [False, False, True, False]
    assert len(watched) == 3
    for connection in opened:
        watched.close(connection.watch)
        watched.close(connection.watch)  # idempotent
    assert len(watched) == 0
    assert watched._by_address == {}


@pytest.mark.parametrize(("bounds", "closed"), [((4, 9), 0), ((9, 3), 1)], ids=["of all", "of one client"])
def test_what_is_idle_makes_room(bounds: tuple[int, int], closed: int) -> None:
    watched = Connections(*bounds)
    opened = [Played() for _ in range(6)]
    for number, address in enumerate("baaaaa"):
        connection = opened[number]
        watched.open(connection, cast(asyncio.Transport, connection), address)
        connection.idle = number in (0, 1)
        connection.watch.started = number  # that of b has been idle longest
    assert [connection.is_cut for connection in opened].index(True) == closed
    assert sum(connection.watch.refused for connection in opened) == (1 if closed else 0)
    for connection in opened:
        watched.close(connection.watch)
    assert len(watched) == 0
    assert watched._by_address == {}


# ---- too many ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["max_connections", "max_connections_per_client"])
def test_connections_are_bounded_and_a_refused_client_reads_why(setting: str) -> None:
    settings: dict[str, Any] = {setting: 2}

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url), open_session(url):
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                answer = await client.get("/v1/health")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert f"--{setting.replace('_', '-')})" in answer.json()["error"]["message"]
            with pytest.raises(ServerUnavailable, match="which is the limit"):
                await Client(url).connect()
            with pytest.raises(websockets.InvalidStatus, match="503"):
                await open_session(url)
        async with open_session(url) as socket:  # places come back
            assert (await exchange(socket, {"type": "models", "id": 1}))[0]["type"] == "reply"

    serve_async(test, **settings)


def test_refused_connections_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_REFUSED", 2)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url), connection_to(url) as first, connection_to(url) as second:
            assert [(await answer_of(reader))[0] for reader, _ in (first, second)] == [503, 503]
            async with connection_to(url) as (reader, _):
                with pytest.raises((ConnectionError, IndexError)):  # cut, without a word
                    await answer_of(reader)
        async with open_session(url):
            pass

    serve_async(test, max_connections=1)


@pytest.mark.usefixtures("impatient")
def test_a_refused_connection_does_not_stay() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with open_session(url), connection_to(url) as (reader, writer):
            assert (await answer_of(reader))[0] == 503
            with contextlib.suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
                    await writer.drain()
                    await asyncio.sleep(0.01)

    serve_async(test, max_connections=1)


def test_inferlets_of_one_client_are_bounded_over_http_and_sessions() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        wait = {"type": "launch", "program": "wait"}
        async with open_session(url) as session, httpx.AsyncClient(base_url=url, trust_env=False) as client:
            (reply,) = await exchange(session, {**wait, "id": 1})
            assert (await client.post("/v1/inferlets", json={"program": "wait"})).status_code == 201
            answer = await client.post("/v1/inferlets", json={"program": "wait"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too-many-requests")
            assert "--max-inferlets-per-client" in answer.json()["error"]["message"]
            (refusal,) = await exchange(session, {**wait, "id": 2})
            assert refusal["error"]["code"] == "too-many-requests"
            runtime.terminate(reply["value"], "to make room")
            answer = await client.post("/v1/inferlets", json={"program": "nothing"})
            assert answer.status_code == 404  # a launch that fails takes no place
            assert (await client.post("/v1/inferlets", json={"program": "wait"})).status_code == 201

    serve_async(test, max_inferlets_per_client=2)


def test_what_a_session_has_not_read_of_ended_inferlets_counts_too() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        flood = {"type": "launch", "program": "flood", "arguments": ["200000", "200000000"]}
        async with open_session(url, max_size=None, max_queue=1, close_timeout=SHORT) as session:
            await session.send(json.dumps([{**flood, "id": number} for number in range(2)]))
            while len(runtime.inferlets()) < 2:
                await asyncio.sleep(0.01)
            for id in ("i1", "i2"):
                await until_it_waits(runtime.inferlet(id).outbox)
            for id in ("i1", "i2"):
                runtime.terminate(id, "enough")
            attach = {"type": "attach", "inferlet": (await runtime.launch("wait")).id}
            await session.send(json.dumps([{**flood, "id": 9}, {**attach, "id": 10}]))
            refusals: list[dict[str, object]] = []
            while len(refusals) < 2:
                refusals += [each for each in json.loads(await session.recv()) if each["type"] == "error"]
            assert all("wait to be read" in json.dumps(refusal) for refusal in refusals)

    serve_async(test, max_inferlets_per_client=2)
