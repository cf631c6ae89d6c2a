"""The protocol of uvicorn for WebSockets, which tells `connections` what happens on each of them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar, cast

from starlette.types import Scope
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pie_control.errors import Unauthorized

from ..connections import Connections, WatchedConnection, clock
from ..protocols import HttpProtocol

TRY_AGAIN_LATER, POLICY_VIOLATION = 1013, 1008
"""The codes with which the server ends a session (RFC 6455): its client does not read, or may not use it any more."""
SHREDDED = "a message came in too many pieces: send larger ones"
MAX_REASON_BYTES = 123
"""The frame that closes a WebSocket has room for so many (RFC 6455)."""
PIECE_BYTES = 4096
"""Bytes of what comes to a session that are looked at together: they may be hundreds of frames."""
TURN_SECONDS = 0.002
"""After this time the other connections have their turns."""
MOST_FRAGMENTS = 4096
"""Fragments that one message may have."""
MOST_PONGS = 1024
"""Answers to pings that wait to be read."""


class SessionProtocol(WebSocketsSansIOProtocol):
    """A WebSocket."""

    registry: ClassVar[Connections]
    watch: WatchedConnection
    _rest = b""  # has come, and was not looked at
    _queued = 0  # bytes of the messages that wait for the application, and of the one that it has
    _taken = 0  # bytes of this one
    _turn: asyncio.Handle | None = None  # in which it is
    _pongs = 0  # since all was sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        before = transport.get_protocol()
        assert isinstance(before, HttpProtocol)
        self.watch = before.watch
        self.watch.protocol = self
        self._sizes: deque[int] = deque()  # of the messages that wait
        super().connection_made(transport)

    def resume_writing(self) -> None:
        self.watch.took()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.close(self.watch)
        super().connection_lost(exc)
        self.conn.parser.close()  # which holds what has come, and leads back to it

    def data_received(self, data: bytes) -> None:
        """One client's frames, however many come at once, hold up the others for TURN_SECONDS."""
        self._rest += data
        if self._turn is None:
            self._take()

    def _take(self) -> None:
        self._turn = None
        data, place, until = self._rest, 0, clock() + TURN_SECONDS
        while place < len(data) and not self.read_paused and not self.transport.is_closing():
            self._take_piece(data[place : place + PIECE_BYTES])
            place += PIECE_BYTES
            if clock() >= until:
                break
        self._rest = data[place:]
        if self.read_paused or self.transport.is_closing():
            return
        if self._rest:
            self._take_on()
        else:
            self.transport.resume_reading()

    def _take_on(self) -> None:
        """What is left is looked at in the next turn."""
        self.transport.pause_reading()
        self._turn = self.loop.call_soon(self._take)

    def _take_piece(self, data: bytes) -> None:
        super().data_received(data)
        if not (self.conn.reader.buffer or self.frames):  # all of it was whole frames
            self.watch.next_request()
        else:
            self.watch.begin_frame()
            self.watch.received += len(data)
        self._count()

    def _count(self) -> None:
        coming = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        self.registry.waits(self.watch, coming + self._queued)

    async def receive(self) -> Any:
        self._queued, self._taken = self._queued - self._taken, 0
        self._count()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._taken = self._sizes.popleft()
        if self._rest and self._turn is None and not self.read_paused:
            self._take_on()
        return message

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) < MOST_FRAGMENTS:
            super().handle_cont(event)
        elif self.watch.cut_at is None:
            self.registry.end(self.watch, 400, "bad-request", SHREDDED)

    def handle_ping(self) -> None:
        if not self.transport.get_write_buffer_size():
            self._pongs = 0
        self._pongs += 1
        if self._pongs <= MOST_PONGS:
            super().handle_ping()
        else:
            self.conn.data_to_send()  # which nobody reads

    def send_receive_event_to_app(self) -> None:
        """uvicorn stops reading at each message until the application has taken it, at the price of several system
        calls. Here one may wait for it meanwhile."""
        paused, self.read_paused = self.read_paused, True
        self._sizes.append(sum(map(len, self.frames)))
        self._queued += self._sizes[-1]
        super().send_receive_event_to_app()
        self.read_paused = paused
        if not paused and self.queue.qsize() > 1:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # uvicorn takes an answer without a handshake for a fault

    def is_reading(self) -> str:
        return "frame" if self.watch.received else ""

    def is_idle(self) -> bool:
        return False

    def serves(self) -> Scope | None:
        return cast("Scope", self.scope) if self.handshake_complete else None

    def say_last(self, status: int, code: str, message: str) -> None:
        closing = POLICY_VIOLATION if status == Unauthorized.status else TRY_AGAIN_LATER
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": closing, "reason": message})
        if self.handshake_complete and not self.close_sent and self.conn.state.name == "OPEN":
            self.conn.send_close(closing, message[:MAX_REASON_BYTES])
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()
