"""`WS /v1/session`: many inferlets on one connection.

Two loops: one carries out requests as frames come in, one sends what waits in the outbox. Whatever arises before the
sender's next turn, or while it waits for a slow client, goes out as one frame. `messages` has the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pie_control.errors import BadRequest, Overloaded, UnknownName
from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.inferlets.inferlet import Inferlet
from pie_control.server_api import ServerApi

from . import messages as wire
from .attachments import Attachments, attach
from .failures import error_body
from .outbox import Outbox
from .views import look_up

log = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 16 << 20
"""Replies and events kept for a client that reads too slowly."""
MAX_LAUNCHES = 1024
"""Launches of one connection that are under way at a time."""
CLOSE_SECONDS = 1.0
TRY_AGAIN_LATER = 1013


class Channel:
    """Carries the events of one inferlet to the session's outbox; keeps them until the inferlet's id is known."""

    def __init__(self, outbox: Outbox, logs: bool, on_end: Callable[[Channel], None]) -> None:
        self.id = ""
        self.inferlet: Inferlet | None = None
        self._early: list[Event] = []
        self._outbox = outbox
        self._logs = logs
        self._on_end = on_end

    def __call__(self, event: Event) -> None:
        if not self.id:
            self._early.append(event)
            return
        match event:
            case Message(text):
                self._outbox.put(wire.MessageEvent(self.id, text))
            case LogLine(time, stream, text):
                if self._logs:
                    self._outbox.put(wire.LogEvent(self.id, time, stream, text))
            case Ended(status, result, error):
                self._outbox.put(wire.EndedEvent(self.id, str(status), result, error))
                self._on_end(self)

    def bind(self, inferlet: Inferlet) -> None:
        """Names the inferlet and passes on what it said so far."""
        self.id, self.inferlet = inferlet.id, inferlet
        early, self._early = self._early, []
        for event in early:
            self(event)


@dataclass
class Held:
    """An inferlet whose events go to a session."""

    channel: Channel
    owned: bool  # ends with the session


class Session:
    """One connection."""

    def __init__(self, websocket: WebSocket, api: ServerApi, attachments: Attachments) -> None:
        self._websocket = websocket
        self._api = api
        self._attachments = attachments
        self._outbox = Outbox(MAX_UNSENT_BYTES)
        self._held: dict[str, Held] = {}
        self._launches: set[asyncio.Task[None]] = set()
        self._open = True

    async def run(self) -> None:
        """Serves the connection until either side closes it; frees what it held."""
        await self._websocket.accept()
        parts = (self._receive_frames(), self._send_frames(), self._outbox.overflow.wait())
        loops: list[asyncio.Task[Any]] = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._release()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        if self._outbox.overflow.is_set():
            await self._close_slow_client()

    # ---- frames ----

    async def _receive_frames(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                frame = await self._websocket.receive()
                if frame["type"] == "websocket.disconnect":
                    return
                self._take_frame(frame.get("text") or frame.get("bytes") or "")

    async def _send_frames(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                items = await self._outbox.take()
                text = b"".join((b"[", b",".join(items), b"]")).decode()
                await self._websocket.send({"type": "websocket.send", "text": text})

    async def _close_slow_client(self) -> None:
        reason = f"the client reads too slowly: more than {MAX_UNSENT_BYTES} bytes waited for it"
        log.warning("closing a session: %s", reason)
        if self._websocket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
                await asyncio.wait_for(self._websocket.close(TRY_AGAIN_LATER, reason), CLOSE_SECONDS)

    def _take_frame(self, frame: str | bytes) -> None:
        try:
            requests = wire.decode_requests(frame)
        except msgspec.DecodeError as error:
            refusal = BadRequest(f"a frame holds a request or a list of requests as JSON: {error}")
            self._outbox.put(wire.Error(_id_of(frame), error_body(refusal)))
            return
        for request in requests:
            self._take_request(request)

    def _take_request(self, request: wire.Request) -> None:
        try:
            if isinstance(request, wire.Launch):
                self._start_launch(request)
            elif isinstance(request, wire.Attach):
                self._attach(request)
            else:
                self._outbox.put(wire.Reply(request.id, self._answer(request)))
        except Exception as error:
            self._outbox.put(wire.Error(request.id, error_body(error)))

    def _answer(self, request: wire.Request) -> object:
        match request:
            case wire.Send(inferlet=inferlet, text=text):
                self._api.inferlet(inferlet).send(text)
            case wire.Terminate(inferlet=inferlet, reason=reason):
                self._api.terminate(inferlet, reason)
            case wire.Detach(inferlet=inferlet):
                self._detach(inferlet)
            case _:
                return look_up(self._api, request)
        return None

    # ---- inferlets ----

    def _start_launch(self, request: wire.Launch) -> None:
        if len(self._launches) >= MAX_LAUNCHES:
            raise Overloaded(f"{MAX_LAUNCHES} launches of this connection are under way: wait for some of them")
        task = asyncio.create_task(self._launch(request))
        self._launches.add(task)
        task.add_done_callback(self._launches.discard)

    async def _launch(self, request: wire.Launch) -> None:
        channel = Channel(self._outbox, request.logs, self._forget)
        try:
            inferlet = await self._api.launch(
                request.program, request.arguments, environment=request.environment, listener=channel
            )
            self._attachments.claim(inferlet.id, self)
        except Exception as error:
            self._outbox.put(wire.Error(request.id, error_body(error)))
            return
        self._hold(inferlet, channel, not request.detached)
        self._outbox.put(wire.Reply(request.id, inferlet.id))
        channel.bind(inferlet)
        if not self._open:  # the client vanished while the program was starting
            self._release()

    def _attach(self, request: wire.Attach) -> None:
        inferlet = self._api.inferlet(request.inferlet)
        if inferlet.id in self._held:
            raise BadRequest(f"inferlet {inferlet.id} is attached to this connection already")
        self._attachments.claim(inferlet.id, self)
        channel = Channel(self._outbox, request.logs, self._forget)
        self._hold(inferlet, channel, False)
        self._outbox.put(wire.Reply(request.id, inferlet.id))
        channel.bind(inferlet)
        attach(inferlet, channel)

    def _hold(self, inferlet: Inferlet, channel: Channel, owned: bool) -> None:
        self._held[inferlet.id] = Held(channel, owned)

    def _detach(self, inferlet: str) -> None:
        held = self._held.get(inferlet)
        if held is None:
            raise UnknownName(f"inferlet {inferlet!r} is not attached to this connection")
        self._let_go(held.channel)

    def _let_go(self, channel: Channel) -> None:
        if channel.inferlet is not None:
            channel.inferlet.detach()
        self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        self._held.pop(channel.id, None)
        self._attachments.release(channel.id, self)

    def _release(self) -> None:
        """Ends the inferlets that end with this connection; the others keep their events for the next client."""
        self._open = False
        for id, held in list(self._held.items()):
            self._let_go(held.channel)
            if held.owned:
                with contextlib.suppress(UnknownName):
                    self._api.terminate(id, "its client disconnected")


class _OnlyId(msgspec.Struct):
    id: int | None = None


def _id_of(frame: str | bytes) -> int | None:
    """The id of a request that is otherwise malformed, so that its sender learns which one it was."""
    try:
        return msgspec.json.decode(frame, type=_OnlyId).id
    except msgspec.DecodeError:
        return None
