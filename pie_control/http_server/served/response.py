"""The answer to a request that a program serves: it runs from the launch to the end of its inferlet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from starlette.datastructures import Address
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pie_control.durable.responses import ResponseRecord
from pie_control.errors import PieError
from pie_control.gateway.ending import ENDINGS, result_of
from pie_control.gateway.gateway import Gateway
from pie_control.gateway.line import Place
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import ServedRequest
from pie_control.gateway.stored.marks import Fetch, Part, Store, read_mark
from pie_control.gateway.stored.running import Running
from pie_control.gateway.stored.store import KILLED, LOST, MOST_FETCHES, MOST_TRIES
from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.inferlets.lifecycle import Status
from pie_control.registry.entry import Entry
from pie_control.tenant_api import TenantApi

from ..attachments import Attachments
from ..callers import Callers
from ..failures import RETRIED, status_of
from ..launches import Launches
from ..messages import encode
from ..routes.event_stream import COMMENT, COMMENT_SECONDS, next_chunk
from .dialects import dialect_of, error_event
from .sending import Headers, send_body, send_events, start_events


async def begin_again(gateway: Gateway, callers: Callers, attachments: Attachments, launches: Launches) -> None:
    """Those of the background are made anew from their request, a few times; the others fail."""
    unfinished = gateway.stored.unfinished()
    await gateway.stored.count_tries()
    for record in unfinished:
        api = callers.api_of(record.tenant, record.key)
        if not record.background or api is None or record.tries >= MOST_TRIES:
            await gateway.stored.fail(record, KILLED if record.tries >= MOST_TRIES else LOST)
        else:
            make = partial(_make_again, record, gateway, api, attachments, launches)
            gateway.stored.make_again(record, _until_made(make))


async def _until_made(make: Callable[[], Awaitable[int]]) -> None:
    """Nobody waits for an answer of the background, so it waits as long as there is no room for it."""
    while seconds := await make():
        await asyncio.sleep(seconds)


async def _make_again(
    record: ResponseRecord, gateway: Gateway, api: TenantApi, attachments: Attachments, launches: Launches
) -> int:
    """Makes an answer of the background that the server before did not end. What was asked is read when it has a place,
    as that of all together may be more than the memory has. Returns the seconds after which to try again; 0: it is
    made, or has failed."""
    try:
        async with gateway.line.place(api.standing) as place:
            asked = gateway.stored.request_of(record)  # which is not held here while it is answered
            made = ServedResponse(gateway, await asked, api, None, attachments, launches)
            if not await made.answer_at(place, _to_nobody):
                await gateway.stored.fail(record, LOST)
    except PieError as error:
        is_loss = isinstance(error, Refused) and error.code == OF_LOSS
        if status_of(error) in RETRIED and not is_loss:
            return int(getattr(error, "retry_after", 1))
        await gateway.stored.fail(record, str(error))
    return 0


OF_LOSS = ENDINGS[Status.LOST][1]
"""The code where what ran an inferlet was lost: perhaps by what it did."""
LEFT = "the client of the request that it served has left"
NO_STREAM = 'the program that serves this does not stream its answers: send the request without "stream"'


class ServedResponse(Response):
    """Launches the inferlet when it is sent. If the client leaves, the inferlet ends at once, unless its answer is
    stored."""

    def __init__(
        self,
        gateway: Gateway,
        request: ServedRequest,
        api: TenantApi,
        address: Address | None,
        attachments: Attachments,
        launches: Launches,
    ) -> None:
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._api = api.of_priority(request.priority) if request.priority else api
        self._address = address
        self._attachments = attachments
        self._launches = launches
        self._news = asyncio.Event()
        self._dialect = dialect_of(request.route)
        self._sent = 0  # events of an answer that is not stored
        self._first: Message | Ended | None = None  # taken, and not looked at yet
        self._stored: asyncio.Future[Running] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check()
        except PieError as refusal:
            await self._dialect.answer(refusal)(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    def _check(self) -> None:
        """Refuses before there are tasks: where many are refused, each should cost little."""
        self._api.check_budget()
        with self._launches.launching(self._address):
            self._gateway.line.check(self._api.standing)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        stored = self._gateway.stored
        doing = answering = stored.hold(self._answer(send))
        leaving = asyncio.create_task(_client_leaves(receive))
        try:
            await asyncio.wait((answering, leaving, self._stored), return_when=asyncio.FIRST_COMPLETED)
            if self._stored.done():  # from now on the answer is made whether the client stays or not
                doing = stored.hold(self._tell(self._stored.result(), send))
                await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            doing.cancel()
            leaving.cancel()
            await asyncio.wait((doing, leaving))
        if doing.cancelled():
            return
        try:
            doing.result()
        except PieError as error:
            await self._dialect.answer(error)(scope, receive, send)
        finally:
            del doing, answering  # whose error leads back to here: the body would wait for a full collection

    async def _answer(self, send: Send) -> None:
        with self._launches.launching(self._address):  # which counts it until it is answered
            async with self._gateway.line.place(self._api.standing) as place:
                await self.answer_at(place, send)

    async def answer_at(self, place: Place, send: Send) -> bool:
        """Makes the answer, which has a place; whether it is stored. Raises PieError."""
        inferlet = await self._gateway.launch(self._request, self._api)
        try:
            await self._answer_of(inferlet, place, send)
        finally:
            place.leave(inferlet.status == Status.EVICTED)
        return self._stored.done()

    def _hear(self, inferlet: Entry, place: Place) -> None:
        """An event has come. An inferlet that has ended, or waits for a client that does not read, needs no place: the
        client would keep others from it."""
        self._news.set()
        if inferlet.ended is not None or inferlet.outbox.is_full:
            place.leave(inferlet.status == Status.EVICTED)

    async def _answer_of(self, inferlet: Entry, place: Place, send: Send) -> None:
        try:
            self._attachments.claim(inferlet.id, self)
            inferlet.outbox.attach(partial(self._hear, inferlet, place))
            if (running := await self._begin(inferlet)) is not None:
                await self._store(running, inferlet)
            else:
                await (self._stream if self._request.stream else self._whole)(inferlet, send)
        finally:
            inferlet.outbox.detach()
            self._attachments.release(inferlet.id, self)
            if inferlet.ended is None:
                self._api.terminate(inferlet.id, LEFT)

    # ---- an answer that is stored ----

    async def _begin(self, inferlet: Entry) -> Running | None:
        """What the program says to the server before anything else; the answer, if it shall be stored."""
        with self._gateway.stored.parts_of(self._api.standing.tenant.name) as hold:
            return await self._begin_by(inferlet, hold)

    async def _begin_by(self, inferlet: Entry, hold: Callable[[str], None]) -> Running | None:
        stored = self._gateway.stored
        parts, fetches = "", 0
        while True:
            self._first = event = await self._next(inferlet)
            mark = read_mark(event.text) if isinstance(event, Message) else None
            if isinstance(mark, Part):
                hold(mark.text)
                parts += mark.text
                if not mark.text:
                    mark, parts = read_mark(parts), ""
            if mark is None:
                return None
            self._first = None
            if isinstance(mark, Store):
                running = await stored.begin(mark, inferlet.id, self._api.standing, self._request)
                self._request = replace(self._request, body=b"")  # which the inferlet has, however long it runs
                return running
            if isinstance(mark, Fetch):
                fetches += 1
                if fetches > MOST_FETCHES:
                    raise Refused(400, f"the program asks for earlier answers more than {MOST_FETCHES} times")
                await self._gateway.tell_earlier(mark.id, inferlet, self._api)

    async def _store(self, running: Running, inferlet: Entry) -> None:
        self._stored.set_result(running)
        while not isinstance(event := await self._next(inferlet), Ended):
            if isinstance(event, Message) and self._request.stream:
                running.add(event.text, self._dialect.is_last(event.text))
        told = self._api.refusal_today
        await self._gateway.stored.end(running, event, lambda error: encode(self._dialect.error(error)).decode(), told)

    async def _tell(self, running: Running, send: Send) -> None:
        record, headers = running.record, self._ids(running.record.inferlet)
        if self._request.stream:
            await send_events(running, 0, self._dialect, headers, send)
            return
        if not record.background:
            await running.wait_for_end()
            if running.error is not None:
                raise running.error
        await send_body(running.record.body, headers, send)

    # ---- one that is not ----

    async def _whole(self, inferlet: Entry, send: Send) -> None:
        while not isinstance(event := await self._next(inferlet), Ended):
            pass
        await send_body(result_of(event, self._api.refusal_today), self._ids(inferlet.id), send)

    async def _stream(self, inferlet: Entry, send: Send) -> None:
        chunk, ended = await self._next_chunk(inferlet)
        # An error has its own status.
        if ended is not None and not chunk and result_of(ended, self._api.refusal_today) != "null":
            raise Refused(400, NO_STREAM, param="stream")
        await start_events(self._ids(inferlet.id), send)
        while ended is None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            try:
                async with asyncio.timeout(COMMENT_SECONDS):
                    chunk, ended = await self._next_chunk(inferlet)
            except TimeoutError:
                chunk = COMMENT
        await send({"type": "http.response.body", "body": chunk + self._last_events(ended)})

    async def _next(self, inferlet: Entry) -> Message | Ended:
        while (taken := self._take(inferlet)) is None:
            self._news.clear()
            await self._news.wait()
        return taken

    def _take(self, inferlet: Entry) -> Message | Ended | None:
        """The next event, or None if there is none now. What its log says is not for the client."""
        first, self._first = self._first, None
        event = first or inferlet.outbox.take()
        while isinstance(event, LogLine):
            event = inferlet.outbox.take()
        return event

    async def _next_chunk(self, inferlet: Entry) -> tuple[bytes, Ended | None]:
        """The next events, up to a size, and how the inferlet has ended if it has."""
        self._first = await self._next(inferlet)
        return next_chunk(partial(self._take, inferlet), self._event)

    def _event(self, event: Event) -> bytes:
        if not isinstance(event, Message):
            return b""
        self._sent += 1
        return self._dialect.event(event.text, self._sent - 1)

    def _last_events(self, ended: Ended) -> bytes:
        try:
            result_of(ended, self._api.refusal_today)
        except Refused as error:
            return error_event(self._dialect, error) + self._dialect.end
        return self._dialect.end

    def _ids(self, inferlet: str) -> Headers:
        return [(b"x-request-id", self._request.id.encode()), (b"x-inferlet-id", inferlet.encode())]


async def _to_nobody(_: object) -> None:
    pass


async def _client_leaves(receive: Callable[[], Awaitable[object]]) -> None:
    while (await receive())["type"] != "http.disconnect":  # type: ignore[index]
        pass
