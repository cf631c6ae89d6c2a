"""The protocol of uvicorn for HTTP, which tells `connections` what happens on each connection."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, ClassVar, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr

from .connections import Connections, WatchedConnection, clock
from .failures import last_answer, last_error

log = logging.getLogger(__name__)

CUT = "a connection of %s is cut: %s"
CAUSED_BY_CLIENTS = {
    "Invalid HTTP request received.",
    "Invalid UTF-8 sequence received from client.",
    CUT,
}
"""What is logged, by uvicorn or here, of a client that is told so itself."""
SILENT_SECONDS = 60.0
"""After one of these, until it is logged again: anybody may cause as many as he likes."""

MALFORMED = (
    "this is no well-formed HTTP/1.1 request: a line of it is no header, for example, or it has Content-Length and "
    "Transfer-Encoding, of which a request has one, not both"
)
FLOODED = "it sent many requests ahead of the answer to the first"
UNANSWERED = "a session cannot begin before the request ahead of it is answered: open another connection"
MAX_HEAD_BYTES = 64 << 10
"""The line and the headers of a request have at most so many together."""
MOST_AHEAD = 16
"""Requests on a connection that wait for the answer to one before them: each takes as much memory as a hundred of the
shortest take bytes."""


class Seldom:
    """A filter of logs that lets what clients cause pass now and then."""

    def __init__(self) -> None:
        self._silent_until: dict[str, float] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.msg not in CAUSED_BY_CLIENTS:
            return True
        now = clock()
        if now < self._silent_until.get(record.msg, now):
            return False
        self._silent_until[record.msg], record.exc_info = now + SILENT_SECONDS, None
        return True


for one in (log, logging.getLogger("uvicorn.error")):
    one.addFilter(Seldom())


class JoinedHead:
    """Writes the head of an answer together with what follows it in the same turn of the event loop: that is one
    system call less, and a short answer costs little else."""

    __slots__ = ("_head", "_is_over", "_is_written", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._is_written = self._is_over = False

    def write(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._is_written:
            self._transport.write(data)
        elif self._head:
            self._flush(data)
        else:
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self, more: bytes = b"") -> None:
        if not (self._is_written or self._is_over):
            self._is_written = True
            self._transport.write(self._head + more)

    @property
    def begins_events(self) -> bool:
        """Whether it is that of a stream of events, in chunks."""
        head = self._head.lower()
        return b"\r\ncontent-type: text/event-stream" in head and b"\r\ntransfer-encoding: chunked" in head

    def end(self) -> None:
        """Nothing is written any more."""
        self._is_over = True

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._head:
            self._flush()
        self._transport.close()


class HttpProtocol(HttpToolsProtocol):
    """A connection that serves requests, until one of them makes it a session."""

    registry: ClassVar[Connections]
    watch: WatchedConnection
    _answered: Any = None  # the request that is answered now, or was last: `cycle` is the one that came last
    _head_bytes: int | None = None  # of the head that is coming, or of what may be trailers; None: neither is
    _is_head = True
    _is_mixed = False  # the data that is read has the end of a request, too, or a part of its body
    _is_flooded = False
    _fed = b""  # what the parser gets now

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = get_remote_addr(transport)
        self.registry.open(self, transport, address[0] if address else "")

    def data_received(self, data: bytes) -> None:
        if self.watch.cut_at is None:
            if self.is_idle():
                self.watch.next_request()  # its time begins now
            self.watch.received += len(data)
            self._is_mixed, self._fed = False, data
            super().data_received(data)
            if self._head_bytes is not None and not self._is_mixed:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(431, f"the head of a request has more than {MAX_HEAD_BYTES} bytes: send fewer headers")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_AHEAD:
            self._is_flooded = True
            raise ValueError("which ends the parser")
        self._head_bytes, self._is_head = 0, True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers, which come behind a body in chunks, are no headers: what was checked of the head stays so, and
        nothing is kept of them (RFC 9110, section 6.5.1)."""
        if self._is_head:
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        """The next chunk of a body begins, or there is none and trailers come."""
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes, self._is_mixed = None, True
        super().on_body(body)

    @property
    def _wants_other(self) -> bool:
        """Whether a request asks for another protocol than a WebSocket, by a header: CONNECT needs none."""
        return bool(self.parser.should_upgrade()) and self._get_upgrade() not in (None, b"websocket")

    def _unsupported_upgrade_warning(self) -> None:
        """A request for HTTP/2, as a rule, of Java's client. It is answered as if it had not asked (RFC 9110, section
        7.8). The parser has taken its body for the other protocol, so the parser gets it once more."""
        ended = sys.exception()
        if not isinstance(ended, httptools.HttpParserUpgrade) or not self._wants_other:
            return self._refuse(400, MALFORMED)
        fields = b"".join(b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade")
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (self.parser.get_method(), self.url, fields)
        self._fed = head + self._fed[ended.args[0] :]
        return super().data_received(self._fed)

    def on_headers_complete(self) -> None:
        self._head_bytes, self._is_head = None, False
        if self._wants_other:
            return
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = cast("asyncio.Transport", JoinedHead(self.transport))

    def on_message_complete(self) -> None:
        self._head_bytes, self._is_mixed = None, True
        if not self._wants_other:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """A request that is not answered yet would not hear any more that its client leaves."""
        if self.cycle is None or self.cycle.response_complete:
            super().handle_websocket_upgrade()
            self.parser = None  # type: ignore[assignment]  # which leads back to this
        else:
            self._refuse(400, UNANSWERED)

    def send_400_response(self, msg: str) -> None:
        """The parser refuses what a proxy could take for something else, too: one that goes by the other length would
        take the rest of a body for a request, of somebody else perhaps (RFC 9112, section 6.1)."""
        if self._is_flooded:
            log.warning(CUT, self.watch.address or "a client", FLOODED)
            self.transport.abort()
        else:
            self._refuse(400, MALFORMED)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse(self, status: int, message: str) -> None:
        """What comes behind such a request cannot be told from it, so it is the last one."""
        self._head_bytes = None
        self.registry.end(self.watch, status, "bad-request", message)

    def resume_writing(self) -> None:
        self.watch.took()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self.watch.next_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.close(self.watch)
        self._tell_that_it_ends()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _tell_that_it_ends(self) -> None:
        """Nobody gets the answer that is being made. uvicorn says so to the request that came last."""
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def is_reading(self) -> str:
        if self.cycle is None:
            return "head"
        if self.cycle.response_complete:
            return "" if self.is_idle() else "head"
        return "body" if self.cycle.more_body else ""

    def is_idle(self) -> bool:
        return self.timeout_keep_alive_task is not None

    def serves(self) -> Scope | None:
        answered = self._answered
        return None if answered is None or answered.response_complete else cast("Scope", answered.scope)

    def say_last(self, status: int, code: str, message: str) -> None:
        path, answered = "" if self.cycle is None else self.scope.get("path", ""), self._answered
        if answered is None or answered.response_complete or not answered.response_started:
            if answered is not None:
                answered.transport.end()
            self._tell_that_it_ends()
            self.transport.write(last_answer(status, code, message, path))
            try:
                self.transport.write_eof()  # closing would lose the answer, if more of the request is on its way
            except OSError:  # the client has gone
                self.transport.abort()
        else:
            if answered.transport.begins_events:
                event = b"event: error\ndata: " + last_error(status, code, message, path) + b"\n\n"
                answered.transport.write(b"%x\r\n%b\r\n" % (len(event), event))  # no last chunk: the stream is cut
            answered.transport.close()
