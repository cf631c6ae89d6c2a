"""`WS /v1/session`: many inferlets on one connection.

Two loops: one carries out requests as frames come in, one sends what the send buffer holds. Everything that arises
before the sender's next turn, or while it waits for a slow client, travels in one frame, up to a size. A client that
reads slowly gets everything; one that stops reading is given up by `connections`. `messages` has the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_control.errors import BadRequest, Overloaded, UnknownName
from pie_control.registry.entry import Entry
from pie_control.server_api import ServerApi
from pie_control.texts import json_fault

from .. import messages as wire
from ..attachments import Attachments
from ..callers import Caller
from ..failures import error_body
from ..launches import Launches
from ..views import describe_model, encoded_list, encoded_logs, find_program
from .channel import Channel
from .protocol import POLICY_VIOLATION, TRY_AGAIN_LATER
from .send_buffer import SendBuffer

MAX_LAUNCHES = 1024
"""Launches of one connection that may be under way at a time."""
REQUESTS_IN_A_TURN = 32
"""Requests that are carried out before others get their turn. One by one, the last of many would wait as many turns,
in each of which all inferlets that can run do so."""
COSTS = {wire.Send: 1, wire.LaunchInferlet: 4}
"""Some requests count as so many of them; others take a turn for themselves."""
NEEDED = dict.fromkeys((wire.LaunchInferlet, wire.Attach, wire.Send, wire.Terminate, wire.Detach), "launch")
"""The capability that a key needs for a request; the others only look, except at a stack, which the inferlet tells."""
DISCONNECTED = "its client disconnected"


class Session:
    """One connection."""

    def __init__(
        self, websocket: WebSocket, server: ServerApi, caller: Caller, attachments: Attachments, launches: Launches
    ) -> None:
        self._websocket = websocket
        self._server = server
        self._api = caller.api
        self._caller = caller
        self._attachments = attachments
        self._client_launches = launches
        self._listing = caller.listing
        self._buffer = SendBuffer()
        self._channels: dict[str, Channel] = {}
        self._launches: set[asyncio.Task[None]] = set()
        self._open = True
        self._end = DISCONNECTED

    async def run(self, most: int) -> None:
        """Serves the connection until either side closes it, then frees what it held. `most`: bytes of a frame."""
        await self._websocket.accept(headers=[(wire.FRAME_HEADER.encode(), str(most).encode())])
        loops = [asyncio.create_task(part) for part in (self._receive_frames(), self._send_frames())]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._release()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            self._buffer.close()

    # ---- frames ----

    async def _receive_frames(self) -> None:
        taken = 0  # in this turn of the event loop
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await self._buffer.room()
                frame = await self._websocket.receive()
                if frame["type"] == "websocket.disconnect":
                    if frame.get("code") in (TRY_AGAIN_LATER, POLICY_VIOLATION):
                        self._end = frame.get("reason") or DISCONNECTED
                    return
                for request in self._read(frame.get("text") or frame.get("bytes") or ""):
                    await self._buffer.room()
                    await self._take_request(request)
                    taken += COSTS.get(type(request), REQUESTS_IN_A_TURN)
                    if taken >= REQUESTS_IN_A_TURN:
                        await asyncio.sleep(0)
                        taken = 0

    async def _send_frames(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                items = await self._buffer.take()
                if items:
                    text = b"".join((b"[", b",".join(items), b"]")).decode()
                    await self._websocket.send({"type": "websocket.send", "text": text})
                if self._buffer.has_more:
                    await asyncio.sleep(0)  # sending to a fast client never waits

    def _read(self, frame: str | bytes) -> Sequence[wire.Request]:
        try:
            return wire.decode_requests(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fault = json_fault(frame if isinstance(frame, bytes) else frame.encode(errors="replace"), error)
            refusal = BadRequest(f"a frame holds a request or a list of requests as JSON: {fault}")
            self._buffer.put(wire.Error(_id_of(frame), error_body(refusal)))
            return ()

    async def _take_request(self, request: wire.Request) -> None:
        try:
            asks_for_stack = isinstance(request, wire.ShowInferlet) and request.stack
            self._caller.check("launch" if asks_for_stack else NEEDED.get(type(request)))
            if isinstance(request, wire.LaunchInferlet):
                self._start_launch(request)
            elif isinstance(request, wire.Attach):
                self._attach(request)
            else:
                self._buffer.put(wire.Reply(request.id, await self._answer(request)))
        except Exception as error:
            self._buffer.put(wire.Error(request.id, error_body(error)))

    async def _answer(self, request: wire.Request) -> object:
        match request:
            case wire.Send(inferlet=inferlet, text=text, blobs=blobs):
                self._api.send(inferlet, text, blobs)
            case wire.Terminate(inferlet=inferlet, reason=reason):
                self._api.terminate(inferlet, reason)
            case wire.Detach(inferlet=inferlet):
                self._detach(inferlet)
            case wire.ListInferlets(of_all=True):
                self._caller.check_sees_all()
                return msgspec.Raw(await encoded_list(await self._api.look_at_all(of_all=True)))
            case wire.ListInferlets():
                return await self._listing.encoded()
            case wire.ShowInferlet(inferlet=inferlet, stack=stack):
                return await self._api.look_at(inferlet, stack)
            case wire.Logs(inferlet=inferlet, after=after):
                return msgspec.Raw(await encoded_logs(self._api, inferlet, after))
            case wire.ShowProgram(program=program):
                return find_program(self._api, program)
            case wire.ListPrograms():
                return self._api.programs()
            case wire.Models():
                return [describe_model(model) for model in self._server.models()]
            case wire.Statistics():
                return self._caller.statistics(self._server)
        return None

    # ---- inferlets ----

    def _start_launch(self, request: wire.LaunchInferlet) -> None:
        if len(self._launches) >= MAX_LAUNCHES:
            raise Overloaded(f"{MAX_LAUNCHES} launches of this connection are under way: wait for some of them")
        self._check_channels()
        task = asyncio.create_task(self._launch(request))
        self._launches.add(task)
        task.add_done_callback(self._launches.discard)

    def _check_channels(self) -> None:
        """Each keeps its inferlet, with its log and result, which the server may have read from its state for it."""
        if len(self._channels) >= self._client_launches.most:
            raise Overloaded(f"{len(self._channels)} inferlets of this connection run, or their events wait to be read")

    async def _launch(self, request: wire.LaunchInferlet) -> None:
        try:
            with self._client_launches.launching(self._websocket.client) as launched:
                inferlet = await self._api.launch(
                    request.program, request.arguments, environment=request.environment, blobs=request.blobs
                )
                launched(inferlet)
            if not request.detached:
                self._attachments.claim(inferlet.id, self)
        except Exception as error:
            self._buffer.put(wire.Error(request.id, error_body(error)))
            return
        if request.detached:  # its events are for the first client that attaches
            self._buffer.put(wire.Reply(request.id, inferlet.id))
            return
        self._open_channel(request, inferlet, owned=True)
        if not self._open:  # the client vanished while the program was starting
            self._release()

    def _attach(self, request: wire.Attach) -> None:
        self._check_channels()
        inferlet = self._api.inferlet(request.inferlet)
        if inferlet.id in self._channels:
            raise BadRequest(f"inferlet {inferlet.id} is attached to this connection already")
        self._attachments.claim(inferlet.id, self)
        self._open_channel(request, inferlet, owned=False)

    def _open_channel(self, request: wire.LaunchInferlet | wire.Attach, inferlet: Entry, owned: bool) -> None:
        self._buffer.put(wire.Reply(request.id, inferlet.id))  # goes before the events
        self._channels[inferlet.id] = Channel(inferlet, self._buffer, request.logs, owned, self._forget)

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
                    self._api.terminate(id, self._end)


class _OnlyId(msgspec.Struct):
    id: int | None = None


def _id_of(frame: str | bytes) -> int | None:
    """The id of a request that is otherwise malformed, so that its sender learns which one it was."""
    try:
        return msgspec.json.decode(frame, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
