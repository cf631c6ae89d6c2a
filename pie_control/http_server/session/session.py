"""`WS /v1/session`: many inferlets on one connection.

Two loops: one carries out requests as frames come in, one sends what the send buffer holds. Everything that arises
before the sender's next turn, or while it waits for a slow client, travels in one frame. `messages` has the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pie_control.errors import BadRequest, Overloaded, UnknownName
from pie_control.inferlets.inferlet import Inferlet
from pie_control.server_api import ServerApi

from .. import messages as wire
from ..attachments import Attachments, attach
from ..failures import error_body
from .channel import Channel
from .look_ups import look_up
from .send_buffer import SendBuffer

log = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 16 << 20
"""Replies and events kept for a slow client."""
MAX_LAUNCHES = 1024
"""Launches of one connection that may be under way at a time."""
CLOSE_SECONDS = 1.0
TRY_AGAIN_LATER = 1013


class Session:
    """One connection."""

    def __init__(self, websocket: WebSocket, api: ServerApi, attachments: Attachments) -> None:
        self._websocket = websocket
        self._api = api
        self._attachments = attachments
        self._buffer = SendBuffer(MAX_UNSENT_BYTES)
        self._channels: dict[str, Channel] = {}
        self._launches: set[asyncio.Task[None]] = set()
        self._open = True

    async def run(self) -> None:
        """Serves the connection until either side closes it, then frees what it held."""
        await self._websocket.accept()
        parts = (self._receive_frames(), self._send_frames(), self._buffer.overflow.wait())
        loops: list[asyncio.Task[Any]] = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._release()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        if self._buffer.overflow.is_set():
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
                items = await self._buffer.take()
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
            self._buffer.put(wire.Error(_id_of(frame), error_body(refusal)))
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
                self._buffer.put(wire.Reply(request.id, self._answer(request)))
        except Exception as error:
            self._buffer.put(wire.Error(request.id, error_body(error)))

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
        channel = Channel(self._buffer, request.logs, not request.detached, self._forget)
        try:
            inferlet = await self._api.launch(
                request.program, request.arguments, environment=request.environment, listener=channel
            )
            self._attachments.claim(inferlet.id, self)
        except Exception as error:
            self._buffer.put(wire.Error(request.id, error_body(error)))
            return
        self._open_channel(request, inferlet, channel)
        if not self._open:  # the client vanished while the program was starting
            self._release()

    def _attach(self, request: wire.Attach) -> None:
        inferlet = self._api.inferlet(request.inferlet)
        if inferlet.id in self._channels:
            raise BadRequest(f"inferlet {inferlet.id} is attached to this connection already")
        self._attachments.claim(inferlet.id, self)
        channel = Channel(self._buffer, request.logs, False, self._forget)
        self._open_channel(request, inferlet, channel)
        attach(inferlet, channel)

    def _open_channel(self, request: wire.Launch | wire.Attach, inferlet: Inferlet, channel: Channel) -> None:
        self._channels[inferlet.id] = channel
        self._buffer.put(wire.Reply(request.id, inferlet.id))
        channel.bind(inferlet)

    def _detach(self, inferlet: str) -> None:
        channel = self._channels.get(inferlet)
        if channel is None:
            raise UnknownName(f"inferlet {inferlet!r} is not attached to this connection")
        channel.close()
        self._forget(inferlet)

    def _forget(self, inferlet: str) -> None:
        self._channels.pop(inferlet, None)
        self._attachments.release(inferlet, self)

    def _release(self) -> None:
        """Ends the inferlets that end with this connection; the others keep their events for the next client."""
        self._open = False
        for id, channel in list(self._channels.items()):
            self._detach(id)
            if channel.owned:
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
