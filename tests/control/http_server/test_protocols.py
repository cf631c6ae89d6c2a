"""What a connection makes of the bytes that come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from pie_control import host_memory
from pie_control.http_server import server
from pie_control.http_server.connections import (
    FRAMES_PART,
    HEADER_SECONDS,
    SMALL_FRAMES,
    TOO_MUCH,
    Connections,
    clock,
)
from pie_control.http_server.protocols import MAX_HEAD_BYTES, MOST_AHEAD, HttpProtocol
from pie_control.http_server.server import HttpServer
from pie_control.http_server.session import protocol as session_protocol
from pie_control.http_server.session.protocol import (
    MOST_FRAGMENTS,
    MOST_PONGS,
    PIECE_BYTES,
    SHREDDED,
    SessionProtocol,
)
from tests.helpers.guard import HANG_SECONDS

UPGRADE = (
    b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==\r\n\r\n"
)
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"


class Wire(asyncio.Transport):
    """Notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.written: list[bytes] = []
        self.closed = False
        self.reads = True
        self.unsent = 0
        self.news = asyncio.Event()

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written.append(bytes(data))
        self.news.set()

    def close(self) -> None:
        self.closed = True
        self.news.set()

    write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def abort(self) -> None:
        self.closed = True

    async def until(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self.news.clear()
            await self.news.wait()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body."""
    body, message = b"", await receive()
    while message["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
        message = await receive()
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


def connect(app: Any, registry: Connections) -> Wire:
    """A new connection."""
    members = {"registry": registry}
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", ws=type("Session", (SessionProtocol,), members), ws_ping_interval=None
    )
    wire = Wire()
    wire.protocol = type("Http", (HttpProtocol,), members)(config=config, server_state=ServerState(), app_state={})
    wire.protocol.connection_made(wire)
    return wire


def connected(test: Callable[[HttpProtocol, Wire], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        wire = connect(echo, Connections(9, 9))
        protocol = wire.protocol
        assert isinstance(protocol, HttpProtocol)
        await test(protocol, wire)
        protocol.connection_lost(None)

    asyncio.run(asyncio.wait_for(run(), 60))


def statuses(wire: Wire) -> list[bytes]:
    return [one[:3] for one in b"".join(wire.written).split(b"HTTP/1.1 ")[1:] if one[:3].isdigit()]


def test_a_head_behind_a_large_body_is_no_large_head() -> None:
    body = b"x" * (MAX_HEAD_BYTES + 1)

    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(POST % len(body) + b"\r\n" + body + POST % 3)
        protocol.data_received(b"\r\nabc")
        await wire.until(lambda: len(statuses(wire)) == 2)
        assert statuses(wire) == [b"200", b"200"]

    connected(test)


def test_the_head_of_an_answer_goes_with_what_follows_at_once() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go_on.wait()
        for text in (b"a", b"b"):
            await send({"type": "http.response.body", "body": text, "more_body": text == b"a"})

    go_on = asyncio.Event()

    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        for length in (3, 0):
            wire.written.clear()
            protocol.data_received(POST % length + b"\r\n" + b"x" * length)
            await wire.until(lambda: bool(wire.written))
            (written,) = wire.written
            assert written.endswith(b"\r\n\r\n" + b"x" * length)
        wire.written.clear()
        protocol.app = late
        protocol.data_received(POST % 0 + b"\r\n")
        await wire.until(lambda: bool(wire.written))
        assert wire.written[0].endswith(b"chunked\r\n\r\n"), "without what comes later"
        go_on.set()
        await wire.until(lambda: len(wire.written) == 3)
        assert wire.written[1:] == [b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n"]

    connected(test)


def test_a_large_head_behind_a_body_is_refused() -> None:
    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(POST % 3 + b"\r\nabc" + POST % 3)
        await wire.until(lambda: bool(wire.written))
        for _ in range(MAX_HEAD_BYTES // 1024 + 1):
            protocol.data_received(b"x-more: " + b"x" * 1014 + b"\r\n")
        assert statuses(wire) == [b"200", b"431"]
        assert wire.closed

    connected(test)


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.mark.parametrize("trailer", [b"a:\r\n", b"x"], ids=["many", "one without end"])
def test_trailers_are_no_headers_and_bounded_as_they_are(trailer: bytes) -> None:
    """Each of the shortest would take forty times its bytes, for ever: 40 MiB took 1.2 GB of the server."""

    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(CHUNKED + b"0\r\nauthorization: Bearer x\r\n\r\n")
        await wire.until(lambda: statuses(wire) == [b"200"])
        assert [name for name, _ in protocol.headers] == [b"host", b"transfer-encoding"]
        protocol.data_received(CHUNKED)
        for _ in range(MAX_HEAD_BYTES // len(trailer) // 1000):
            protocol.data_received(b"3\r\nabc\r\n" * 1000)  # however many chunks there are
        protocol.data_received(b"0\r\n")
        for _ in range(MAX_HEAD_BYTES // len(trailer) // 1000 + 1):
            protocol.data_received(trailer * 1000)
        assert statuses(wire) == [b"200", b"431"]
        assert wire.closed

    connected(test)


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_end_of_a_connection_is_told_to_the_request_that_is_answered(is_lost: bool) -> None:
    """Not only to the one behind it: a stream went on for nobody."""
    left = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})  # to nobody, and no fault
        left.set()

    async def run() -> None:
        wire = connect(waits, Connections(9, 9))
        wire.protocol.data_received((POST % 0 + b"\r\n") * 2)
        await asyncio.sleep(0)
        if is_lost:
            wire.protocol.connection_lost(None)
        else:
            wire.protocol.data_received(b"hello\r\n\r\n")
        await left.wait()
        assert statuses(wire) == [b"400"][is_lost:]

    asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))


def test_what_clients_cause_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        for _ in range(100):
            other = connect(echo, Connections(9, 9))
            other.protocol.data_received(POST % 0 + b"\r\nhello\r\n\r\n")
            await asyncio.sleep(0)
            assert statuses(other) == [b"400"]

    connected(test)
    assert len(caplog.records) <= 1


def test_no_session_begins_behind_a_request_that_is_not_answered() -> None:
    """Its connection would belong to the session, and so the request would never hear that its client left."""
    left = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async def run() -> None:
        wire = connect(waits, Connections(9, 9))
        wire.protocol.data_received(b"GET /v1/dashboard HTTP/1.1\r\nHost: localhost\r\n\r\n" + UPGRADE)
        assert statuses(wire) == [b"400"]
        wire.protocol.connection_lost(None)
        await left.wait()

    asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))


async def session(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes all that comes until the end."""
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


def in_session(test: Callable[[SessionProtocol, Wire], Coroutine[Any, Any, None]], app: Any = session) -> None:
    async def run() -> None:
        wire = connect(app, Connections(9, 9))
        wire.protocol.data_received(UPGRADE)
        await wire.until(lambda: statuses(wire) == [b"101"])
        wire.written.clear()
        assert isinstance(wire.protocol, SessionProtocol)
        await test(wire.protocol, wire)
        wire.protocol.connection_lost(None)

    asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))


PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\0"


def test_many_requests_ahead_of_their_answers_end_the_connection() -> None:
    begun: list[Scope] = []

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope)

    async def run() -> None:
        wire = connect(waits, Connections(9, 9))
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        wire.protocol.data_received(request * (1 + MOST_AHEAD))
        assert not wire.closed
        wire.protocol.data_received(request * 10_000)
        assert wire.closed
        assert len(wire.protocol.pipeline) == MOST_AHEAD
        assert not wire.written

    asyncio.run(run())


def test_many_frames_that_come_at_once_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_protocol, "TURN_SECONDS", 0.0)

    async def test(protocol: SessionProtocol, wire: Wire) -> None:
        protocol.data_received(PING * 10_000)
        assert b"".join(wire.written).count(PONG) * len(PING) <= PIECE_BYTES
        assert not wire.reads
        await wire.until(lambda: b"".join(wire.written) == PONG * 10_000)
        assert wire.reads
        protocol.data_received(PING[:3])
        protocol.data_received(PING[3:])
        assert b"".join(wire.written) == PONG * 10_001

    in_session(test)


def test_messages_that_come_at_once_all_reach_the_session() -> None:
    """Whatever is paused meanwhile, and resumed."""
    texts: list[str] = []

    async def takes(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            texts.append(message["text"])

    async def test(protocol: SessionProtocol, wire: Wire) -> None:
        sent = [str(number).zfill(4) for number in range(5000)]
        frames = b"".join(b"\x81\x84\0\0\0\0" + text.encode() for text in sent)
        for begin in range(0, len(frames), 9999):
            while not wire.reads:
                await asyncio.sleep(0)
            protocol.data_received(frames[begin : begin + 9999])
            assert protocol.queue.qsize() <= PIECE_BYTES // 10 + 2
        while len(texts) < len(sent):
            await asyncio.sleep(0)
        assert texts == sent

    in_session(test, takes)


def test_pongs_that_nobody_reads_are_left_out() -> None:
    async def test(protocol: SessionProtocol, wire: Wire) -> None:
        wire.unsent = 1
        protocol.data_received(PING * (MOST_PONGS + 5000))
        while protocol._rest:
            await asyncio.sleep(0)
        assert MOST_PONGS <= b"".join(wire.written).count(PONG) < MOST_PONGS + PIECE_BYTES
        wire.unsent = 0
        wire.written.clear()
        protocol.data_received(PING)
        assert wire.written == [PONG]

    in_session(test)


def test_a_message_of_endless_pieces_ends_the_session() -> None:
    async def test(protocol: SessionProtocol, wire: Wire) -> None:
        protocol.data_received(b"\x01\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * (MOST_FRAGMENTS + 5000))
        await wire.until(lambda: wire.closed)
        assert len(protocol.frames) == MOST_FRAGMENTS
        assert wire.written[-1].endswith(SHREDDED.encode())

    in_session(test)


def test_what_waits_in_sessions_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is coming, and one that the session has not looked at since its client reads nothing."""
    size, reads = 120_000, asyncio.Event()
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 2 * FRAMES_PART * (2 * (size - SMALL_FRAMES) - 9))
    frame = b"\x82\xff" + size.to_bytes(8, "big") + bytes(4 + size)

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await reads.wait()
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async def test(first: SessionProtocol, _: Wire) -> None:
        async def another() -> Wire:
            wire = connect(busy, first.registry)
            wire.protocol.data_received(UPGRADE)
            await wire.until(lambda: statuses(wire) == [b"101"])
            return wire

        second = await another()
        first.data_received(frame)
        while not first.queue.qsize():
            await asyncio.sleep(0)
        second.protocol.data_received(frame[:-1])
        await second.until(lambda: second.closed)
        assert (1013).to_bytes(2, "big") + TOO_MUCH.encode() in second.written[-1]
        second.protocol.connection_lost(None)
        third = await another()
        reads.set()
        while first.queue.qsize():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        third.protocol.data_received(frame)
        while third.protocol._rest or third.protocol.queue.qsize():
            await asyncio.sleep(0)
        assert not third.closed
        third.protocol.connection_lost(None)

    in_session(test, busy)


def test_the_time_of_a_request_begins_when_it_comes_however_long_its_connection_was_idle() -> None:
    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(POST % 0 + b"\r\n")
        await wire.until(lambda: statuses(wire) == [b"200"])
        protocol.watch.started -= HEADER_SECONDS + 1
        protocol.registry.sweep(clock())
        protocol.data_received(POST[:9])
        protocol.registry.sweep(clock())
        assert not wire.closed
        protocol.registry.sweep(clock() + HEADER_SECONDS + 1)
        assert statuses(wire) == [b"200", b"408"]

    connected(test)


def test_a_session_that_its_client_has_closed_keeps_no_other_one_from_ending() -> None:
    """A client whose bytes still wait stays a connection for a while after its own last word."""

    async def run() -> None:
        registry = Connections(9, 9)
        wires = [connect(session, registry) for _ in range(3)]
        for wire in wires:
            wire.protocol.data_received(UPGRADE)
            await wire.until(lambda: statuses(wire) == [b"101"])  # noqa: B023
        for wire in wires[:2]:
            wire.protocol.data_received(b"\x88\x80\0\0\0\0")  # closes
        registry.check(lambda _: "the key was revoked")
        assert all(wire.closed and wire.protocol.watch.cut_at is not None for wire in wires)
        assert b"the key was revoked" in wires[2].written[-1]
        for wire in wires:
            wire.protocol.connection_lost(None)

    asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))


def test_a_connection_that_cannot_be_looked_at_is_cut_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> Any:
        raise ZeroDivisionError

    async def run() -> None:
        registry = Connections(9, 9)
        wires = [connect(session, registry) for _ in range(3)]
        wires[1].protocol.serves = wires[2].protocol.is_reading = fail
        registry.check(lambda _: "the key was revoked")
        assert [wire.closed for wire in wires] == [False, True, False]
        wires[1].protocol.connection_lost(None)
        registry.sweep(clock() + HEADER_SECONDS + 1)
        assert all(wire.closed for wire in wires)
        assert statuses(wires[0]) == [b"408"]

    asyncio.run(run())
    assert caplog.text.count("is cut") == 2


def test_a_fault_does_not_end_the_watch_over_keys(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        checked = asyncio.Event()
        looks = iter([True])
        faults = [ZeroDivisionError()]
        callers = SimpleNamespace(forget_keys=lambda: None, objection=None)
        served: Any = SimpleNamespace(_callers=callers, _connections=SimpleNamespace(check=lambda _: checked.set()))

        def look() -> bool:
            if faults:
                raise faults.pop()
            return next(looks, False)

        keys: Any = SimpleNamespace(look=look)
        watch = asyncio.create_task(HttpServer._watch_keys(served, keys))
        await asyncio.wait_for(checked.wait(), HANG_SECONDS)
        watch.cancel()

    monkeypatch.setattr(server, "WATCH_SECONDS", 0.0)
    asyncio.run(run())
    assert "could not be looked at" in caplog.text


@pytest.mark.parametrize("head", [POST % 3, POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")])
@pytest.mark.parametrize("size", [1, 40, 1000])
def test_a_request_for_http_2_is_answered_as_if_it_had_not_asked(head: bytes, size: int) -> None:
    """Java's client asks with each request: its bodies were lost, so each was refused."""
    h2c = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n\r\n"
    body = b"3\r\nabc\r\n0\r\n\r\n" if b"chunked" in head else b"abc"
    sent = (head + h2c + body) * 2 + b"GET / HTTP/1.1\r\nHost: localhost\r\n" + h2c + POST % 3 + b"\r\nabc"

    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        for begin in range(0, len(sent), size):
            protocol.data_received(sent[begin : begin + size])
        await wire.until(lambda: len(statuses(wire)) == 4)
        assert statuses(wire) == [b"200"] * 4
        assert b"".join(wire.written).count(b"abc") == 3

    connected(test)


@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"])
@pytest.mark.parametrize("target", [b"localhost:443", b"/health"])
def test_there_is_no_tunnel(upgrade: bytes, target: bytes) -> None:
    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\nabc")
        await wire.until(lambda: wire.closed)
        assert statuses(wire) == [b"400"]

    connected(test)
