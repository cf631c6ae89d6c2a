"""One request and its response: a task that connects, sends, follows redirects, and reads the body as it is wanted.

Theory of operation. The task lives as long as it needs its connection, and never past the deadline of the request. It
is at most two pieces of the body ahead of whoever reads, so a fast server fills no memory, and a short response ends
by itself. Whoever asks for a piece gets it by a call back, at once if it is there. `close` ends the task, wherever it
is, and with it the connection; only the rest of a short body is still read. A connection is kept only after a response
that has come to its end (`kept.py`).
"""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...errors import CallError, InvalidState, RequestFailed, TimedOut
from .decoding import Gunzip
from .kept import Sender
from .request import REDIRECTS, HttpRequest, redirected

if TYPE_CHECKING:
    import httpcore

    from .network import Network

PACKED = frozenset({"content-encoding", "content-length"})
"""Headers that describe a body before it is unpacked."""

REST_BYTES = 1 << 16
"""A body that is announced to be no longer is read to its end also if nobody wants it: programs often look at the
status alone, and a new connection costs both ends more than a short body."""
REST_SECONDS = 1.0
"""Until such a body has to be there."""

Answer = Callable[[Any], None]
Work = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function on a thread beside the event loop and gives what it returns, or raises what it raises."""


class Head:
    """A response without its body."""

    __slots__ = ("exchange", "headers", "status", "url")

    def __init__(self, exchange: Exchange, status: int, url: str, headers: list[tuple[str, str]]) -> None:
        self.exchange = exchange
        self.status = status
        self.url = url
        self.headers = headers

    def not_taken(self) -> None:
        """Nobody wants the response."""
        self.exchange.close()


class Chunk:
    """A piece of a body; empty at its end."""

    __slots__ = ("data", "exchange")

    def __init__(self, data: bytes, exchange: Exchange) -> None:
        self.data = data
        self.exchange = exchange

    def not_taken(self) -> None:
        """The next one who reads gets it."""
        self.exchange.put_back(self.data)

    def packed(self) -> str:
        """The bytes as base64."""
        return b2a_base64(self.data, newline=False).decode()


class Exchange:
    """Belongs to the thread of one event loop. `answer` gets the `Head` or a CallError, `on_end` is called once, when
    the connection is closed."""

    def __init__(
        self,
        request: HttpRequest,
        sender: Sender,
        most_bytes: int,
        work: Work,
        answer: Answer,
        on_end: Callable[[Exchange], None],
    ) -> None:
        """`most_bytes`: of the body, packed or not. `work`: what unpacks it, at the cost of who asked."""
        self._request = request
        self._sender = sender
        self._most_bytes = most_bytes
        self._work = work
        self._answer: Answer | None = answer
        self._on_end = on_end
        self._pieces: deque[bytes] = deque()  # read and not taken
        self._taken = 0  # bytes of the first one
        self._reader: tuple[int, Answer] | None = None
        self._room = asyncio.Event()  # for a further piece
        self._room.set()
        self._failure: CallError | None = None
        self._ended = False
        self._is_short = False  # what is being read
        self._task: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None

    def start(self, network: Callable[[], Any]) -> None:
        """Begins; `network` gives what connects, in time."""
        self._task = asyncio.get_running_loop().create_task(self._live(network))
        self._task.add_done_callback(self._over)  # called as well if the task is ended before it has begun

    # ---- for who asked ----

    def read(self, most: int, answer: Answer) -> None:
        """Answers with a `Chunk` of at most `most` bytes or a CallError. Raises InvalidState while another read is
        under way."""
        if self._reader is not None:
            raise InvalidState("this body is being read: await the future of that first")
        self._reader = most, answer
        self._serve()

    def stop_reading(self) -> None:
        """The read under way is not wanted any more; what has come is kept for the next one."""
        self._reader = None

    def put_back(self, data: bytes) -> None:
        """What was read last is read again."""
        if self._taken:
            self._pieces[0] = self._pieces[0][self._taken :]
            self._taken = 0
        if data:
            self._pieces.appendleft(data)

    def close(self) -> None:
        """Ends it; nobody is answered any more. Idempotent."""
        self._answer = self._reader = None
        self._pieces.clear()
        if self._task is None or self._ended or self.is_left:
            return
        if self._is_short:
            self._rest = asyncio.get_running_loop().call_later(REST_SECONDS, self._task.cancel)
            self._room.set()
        else:
            self._task.cancel()

    @property
    def is_left(self) -> bool:
        """Whether it is closed, and reads the rest of a body for the sake of its connection."""
        return self._rest is not None

    # ---- the task ----

    async def _live(self, network: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(self._request.seconds):
                await self._exchange(await network())
        except TimeoutError:
            self._failure = TimedOut(f"{self._request.target.host}: not done within {self._request.seconds:g} s")
        except CallError as error:
            self._failure = error

    def _over(self, _: object) -> None:
        self._ended = True
        if self._rest is not None:
            self._rest.cancel()
        self._on_end(self)
        self._serve()

    async def _exchange(self, network: Network) -> None:
        from .network import as_call_error

        while True:
            self._sender.allowed.check_host(self._request.target.host, self._request.target.port)
            connection = None
            try:
                connection, response = await network.send(self._request, self._sender)
                location = _header(response, b"location")
                if not (self._request.redirects and response.status in REDIRECTS and location):
                    await self._deliver(response)
                    await response.aclose()
                    network.kept.keep(self._sender, self._request, connection)
                    connection = None
                    return
            except (CallError, asyncio.CancelledError, TimeoutError):
                raise
            except Exception as error:  # of httpcore, h11, ssl: whatever a server can cause
                raise as_call_error(error, self._request.target.host) from None
            finally:
                if connection is not None:
                    await connection.aclose()
            self._request = redirected(self._request, response.status, location)

    async def _deliver(self, response: httpcore.Response) -> None:
        packed = _header(response, b"content-encoding").lower() == "gzip"
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
        if packed:
            headers = [(name, value) for name, value in headers if name not in PACKED]
        length = _header(response, b"content-length")
        self._is_short = length.isdecimal() and int(length) <= REST_BYTES
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(Head(self, response.status, self._request.target.url, headers))
        async for piece in self._body(response, packed):
            await self._room.wait()
            if self.is_left:
                continue
            self._room.clear()
            self._pieces.append(piece)
            self._serve()

    async def _body(self, response: httpcore.Response, packed: bool) -> AsyncIterator[bytes]:
        """Pieces; of packed ones none is made before the one before it was kept."""
        size, gunzip = 0, Gunzip()
        async for data in response.aiter_stream():
            size = self._count(size, len(data))
            if not packed or self.is_left:
                yield data
                continue
            gunzip.feed(data)
            while piece := await self._work(gunzip.piece):
                size = self._count(size, len(piece))
                yield piece
        if gunzip.is_cut_off and not self.is_left:
            raise RequestFailed("the body of the response ends in the middle of its gzip data")

    def _count(self, size: int, more: int) -> int:
        if size + more > self._most_bytes:
            raise RequestFailed(
                f"the response of {self._request.target.host} has more than {self._most_bytes} bytes, which is the "
                "limit here (max_http_bytes): ask for less, or close it when you have enough"
            )
        return size + more

    # ---- between them ----

    def _serve(self) -> None:
        """Answers whoever waits, if there is something to say."""
        if self._answer is not None and self._ended:
            answer, self._answer = self._answer, None
            answer(self._failure or RequestFailed("the request was given up"))
        if self._reader is not None and (self._pieces or self._ended):
            (most, answer), self._reader = self._reader, None
            answer(Chunk(self._next(most), self) if self._pieces else self._failure or Chunk(b"", self))

    def _next(self, most: int) -> bytes:
        piece, begin = self._pieces[0], self._taken
        if len(piece) - begin <= most:
            self._pieces.popleft()
            self._taken = 0
            self._room.set()
        else:
            self._taken = begin + most
        return piece[begin : begin + most]


def _header(response: httpcore.Response, name: bytes) -> str:
    return next((value.decode("latin-1").strip() for key, value in response.headers if key.lower() == name), "")
