"""One WebSocket to a server: requests and their replies, and the events of inferlets (`http_server/messages.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode

from pie_control import errors
from pie_control.errors import PieError
from pie_control.http_server import messages as wire
from pie_control.inferlets.events import Ended, Event, LogLine

from .running import TERMINATED, Content, Running

CONNECT_SECONDS = 10.0

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

Upload = Callable[[Content], Awaitable[str]]


class ServerUnavailable(PieError):
    """No server answers at the address, or the connection to it broke."""


def error_of(body: wire.ErrorBody) -> PieError:
    """The exception for an error that the server sent."""
    kind = getattr(errors, (body.code or "").title().replace("-", ""), PieError)
    if not (isinstance(kind, type) and issubclass(kind, PieError)) or kind is errors.InferletEnded:
        kind = PieError
    error: PieError = kind(body.message)
    return error


def _reason(refusal: InvalidStatus) -> str:
    """What the server says, or the status if it is no server of ours."""
    try:
        return str(msgspec.json.decode(refusal.response.body)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return f"{refusal}; is it a Pie server, and its address without a path?"


def _may_be_done(request: wire.Request) -> str:
    """What is said beside where the reply to a request is lost. Inferlets that are not detached end with the session,
    and what only looks can be asked again."""
    match request:
        case wire.LaunchInferlet(detached=True):
            return "; the inferlet may run all the same: look whether it does before you launch it again"
        case wire.Send():
            return "; the message may have come all the same"
    return ""


def authorization(token: str | None) -> dict[str, str]:
    """The header that shows a token, without the line break that files end with. Raises Unauthorized, which does not
    tell it."""
    if token is None or not (token := token.strip()):
        return {}
    if not (token.isascii() and token.isprintable()):
        raise errors.Unauthorized("the token has characters that no token has: take it as it was printed, alone")
    return {"Authorization": f"Bearer {token}"}


def certificates(server: str) -> ssl.SSLContext | bool:
    """What HTTP requests check the certificate of a server at https:// against: the authorities of the system (or of
    SSL_CERT_FILE), as sessions do, and those of certifi. Loading them takes 15 ms."""
    import httpcore

    return server.startswith("https:") and httpcore.default_ssl_context()


def address_of(server: str) -> str:
    """The address `http://host:port` of a server, also where it is given with the /v1 that clients of OpenAI's API
    want. Raises ServerUnavailable for what is no address."""
    if not server.startswith(("http://", "https://")):
        raise ServerUnavailable(f"the address of a server begins with http:// or https://, not {server!r}")
    if not server.partition("://")[2].strip("/"):
        raise ServerUnavailable(f"the address of a server is http://host:port, and {server} names no host")
    return server.rstrip("/").removesuffix("/v1").rstrip("/")


def session_url(server: str) -> str:
    """The address of the session on the server `http://host:port`."""
    return "ws" + server.removeprefix("http") + "/v1/session"


class ServerSession:
    """A session with a server. Belongs to one event loop; is the `Link` of its inferlets."""

    def __init__(self, server: str, socket: ClientConnection, upload: Upload) -> None:
        """`upload` sends a blob beside the session, and gives its hash."""
        self._server = server
        self._socket = socket
        told = socket.response.headers.get(wire.FRAME_HEADER, "") if socket.response else ""
        self._most = int(told) if told.isdecimal() else 0  # bytes of a frame; 0: the server does not say
        self._upload = upload
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._following: dict[int, tuple[wire.LaunchInferlet | wire.Attach, Running | None]] = {}
        self._undoing: set[asyncio.Task[Any]] = set()
        self._running: dict[str, Running] = {}
        self._lost: PieError | None = None
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, server: str, upload: Upload, timeout: float = CONNECT_SECONDS, headers: Mapping[str, str] = NO_HEADERS
    ) -> ServerSession:
        """Connects; raises ServerUnavailable, Unauthorized."""
        try:
            # No proxy: it would delay every token, and a server on this machine needs none.
            socket = await connect(
                session_url(server),
                additional_headers=headers,
                compression=None,
                max_size=None,
                open_timeout=timeout,
                proxy=None,
                close_timeout=1,
            )
        except InvalidStatus as error:
            if error.response.status_code == errors.Unauthorized.status:
                raise errors.Unauthorized(_reason(error)) from None
            raise ServerUnavailable(f"{server} refuses the connection: {_reason(error)}") from None
        except TimeoutError:
            raise ServerUnavailable(
                f"{server} takes connections, but does not answer within {timeout:g} s: it may be starting; try again"
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise ServerUnavailable(
                f"the certificate of {server} is not trusted here ({error.verify_message}): name the file of the "
                "authority that signed it in SSL_CERT_FILE"
            ) from None
        except (OSError, InvalidHandshake, InvalidURI, ValueError) as error:
            raise ServerUnavailable(
                f"no Pie server answers at {server} ({error}): start one with `pie serve`"
            ) from None
        return cls(server, socket, upload)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is gone."""
        return self._lost is not None

    async def close(self) -> None:
        """Ends the session, and with it the inferlets that it launched, unless they are detached. Idempotent."""
        await self._socket.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._lose(ServerUnavailable("the client was closed"))

    # ---- requests ----

    async def request(self, kind: Callable[..., wire.Request], /, **fields: Any) -> Any:
        """Sends a request and returns the value of its reply; raises the PieError that the server answers with."""
        return await self._exchange(kind(id=next(self._ids), **fields))

    async def follow(
        self,
        kind: type[wire.LaunchInferlet] | type[wire.Attach],
        /,
        *,
        running: Running | None = None,
        **fields: Any,
    ) -> Running:
        """Sends a request whose reply is the id of an inferlet; its events follow, to `running` if it is given. Raises
        like `request`."""
        request = kind(id=next(self._ids), **fields)
        self._following[request.id] = request, running
        followed: Running = await self._exchange(request)
        return followed

    async def _exchange(self, request: wire.Request) -> Any:
        if self._lost is not None:
            raise self._lost
        frame = wire.encode(request)
        if 0 < self._most < len(frame):  # it would end the session, and with that all that it has launched
            self._following.pop(request.id, None)
            raise errors.BadRequest(
                f"the request has {len(frame)} bytes, and {self._server} takes {self._most} at a time "
                "(--max-message-bytes): send it in parts, or as a blob"
            )
        reply = asyncio.get_running_loop().create_future()
        self._replies[request.id] = reply
        try:
            with contextlib.suppress(ConnectionClosed):  # the reader sets the reason
                await self._socket.send(frame.decode())
            return await reply
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}{_may_be_done(request)}") from None
        except asyncio.CancelledError:
            came = reply.done() and not reply.cancelled() and reply.exception() is None
            if came and isinstance(request, wire.LaunchInferlet | wire.Attach):
                self._undo(request, reply.result().id)
            raise
        finally:
            self._replies.pop(request.id, None)

    # ---- Link ----

    async def send(self, inferlet: str, text: str, blobs: Mapping[str, Content]) -> None:
        uploaded = {name: await self._upload(blob) for name, blob in blobs.items()}
        await self.request(wire.Send, inferlet=inferlet, text=text, blobs=uploaded)

    async def terminate(self, inferlet: str, reason: str = TERMINATED) -> None:
        await self.request(wire.Terminate, inferlet=inferlet, reason=reason)

    async def inferlet(self, inferlet: str, stack: bool = False) -> dict[str, Any]:
        value: dict[str, Any] = await self.request(wire.ShowInferlet, inferlet=inferlet, stack=stack)
        return value

    async def logs(self, inferlet: str, after: int = 0) -> tuple[LogLine, ...]:
        lines = await self.request(wire.Logs, inferlet=inferlet, after=after)
        return tuple(LogLine(**line, inferlet=inferlet) for line in lines)

    # ---- incoming messages ----

    async def _read(self) -> None:
        try:
            async for frame in self._socket:
                for message in wire.decode_frame(frame):
                    self._take(message)
        except asyncio.CancelledError:  # by `close`, or with all tasks of the loop
            self._lose(ServerUnavailable("the client was closed"))
            raise
        except Exception as error:  # whatever stops the reader must reach those who wait for replies
            if self._socket.close_code == CloseCode.POLICY_VIOLATION:
                self._lose(errors.Unauthorized(f"{self._server} ended the session: {self._socket.close_reason}"))
            else:
                self._lose(ServerUnavailable(f"the connection to {self._server} broke: {error}"))
        else:
            reason = self._socket.close_reason or "the server ended it"
            self._lose(ServerUnavailable(f"the connection to {self._server} was closed: {reason}"))

    def _take(self, message: wire.FromServer) -> None:
        match message:
            case wire.Reply(id=id, value=value):
                self._take_reply(id, value)
            case wire.Error(id=id, error=body):
                self._take_error(id, body)
            case event:
                self._deliver(event)

    def _deliver(self, event: Event) -> None:
        running = self._running.get(event.inferlet)
        if running is not None:
            running.deliver(event)
        if isinstance(event, Ended):
            self._running.pop(event.inferlet, None)

    def _take_reply(self, id: int, value: Any) -> None:
        reply, following = self._replies.get(id), self._following.pop(id, None)
        if following is not None and (reply is None or reply.cancelled()):
            self._undo(following[0], value)
        elif following is not None and isinstance(following[0], wire.LaunchInferlet) and following[0].detached:
            value = Running(value, self)
            attach = functools.partial(self.follow, wire.Attach, inferlet=value.id, logs=following[0].logs)
            value.attach_by(functools.partial(attach, running=value))
        elif following is not None:
            # Entered at once, not when the caller wakes up: its first events may be in the same frame.
            id_now, value = value, self._running.setdefault(value, following[1] or Running(value, self))
            value.id = id_now
        if reply is not None and not reply.done():
            reply.set_result(value)

    def _undo(self, request: wire.LaunchInferlet | wire.Attach, inferlet: str) -> None:
        """Undoes a launch or an attachment whose caller no longer waits for it."""
        kind = wire.Terminate if isinstance(request, wire.LaunchInferlet) else wire.Detach
        task = asyncio.create_task(self.request(kind, inferlet=inferlet))
        self._undoing.add(task)
        task.add_done_callback(self._undone)

    def _undone(self, task: asyncio.Task[Any]) -> None:
        self._undoing.discard(task)
        if not task.cancelled():
            task.exception()  # it may have ended by itself, or the connection with it

    def _take_error(self, id: int | None, body: wire.ErrorBody) -> None:
        reply = self._replies.get(id) if id is not None else None
        if id is not None:
            self._following.pop(id, None)
        if reply is not None and not reply.done():
            reply.set_exception(error_of(body))

    def _lose(self, error: PieError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(error)
        for running in self._running.values():
            running.lose(error)
