"""`/v1/inferlets`: launch inferlets, talk to them, end them."""

from __future__ import annotations

import functools
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec
from fastapi import APIRouter, Header, Query, Request
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from pie_control.registry.entry import Entry, InferletInfo

from ..attachments import Attachments
from ..callers import FromTenant
from ..launches import Launches
from ..views import LogEntry, encoded_list, encoded_logs
from .bodies import BlobHashes, describe_body, read_body
from .event_stream import EventStream, SentEvents
from .failures import failures


class LaunchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to launch."""

    program: Annotated[
        str, Meta(description="Content hash, a unique beginning of one (8 characters or more), or a name.")
    ]
    arguments: Annotated[list[str], Meta(description="What the inferlet reads by `get_arg`.")] = []
    environment: Annotated[dict[str, str], Meta(description="Entries that the inferlet reads by `get_env`.")] = {}
    blobs: BlobHashes = {}


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to an inferlet."""

    text: Annotated[str, Meta(description="What the inferlet's `receive` returns.")]
    blobs: BlobHashes = {}


LAUNCH = describe_body(LaunchBody, {"program": "hello", "arguments": ["--name", "Ada"]})
MESSAGE = describe_body(MessageBody, {"text": "What is a page?"})
STREAMED: dict[int | str, dict[str, Any]] = {
    201: {"description": "It runs; or, with `stream=true`, its events.", "content": {"text/event-stream": {}}}
}
LISTED: dict[int | str, dict[str, Any]] = {200: {"model": list[InferletInfo]}}
LOGGED: dict[int | str, dict[str, Any]] = {200: {"model": list[LogEntry]}}


def inferlets_router(attachments: Attachments, launches: Launches) -> APIRouter:
    """Routes over the inferlets of a tenant."""
    router = APIRouter(prefix="/v1/inferlets", tags=["inferlets"])
    sent: WeakKeyDictionary[Entry, SentEvents] = WeakKeyDictionary()
    _add_launch(router, attachments, launches)
    _add_looks(router)
    _add_talk(router, attachments, sent)
    return router


def _add_launch(router: APIRouter, attachments: Attachments, launches: Launches) -> None:
    """How inferlets begin."""

    @router.post(
        "",
        status_code=201,
        summary="Launch an inferlet",
        openapi_extra=LAUNCH,
        response_model=InferletInfo,
        responses=STREAMED | failures(404, 413, 422, 429),
    )
    async def launch(
        request: Request,
        caller: FromTenant,
        stream: Annotated[bool, Query(description="Answer with its events, as `events` does.")] = False,
    ) -> Any:
        """Starts an inferlet that runs until it ends by itself or is deleted. The server keeps its messages, within
        bounds, until `events` or a session reads them. To launch many, use `WS /v1/session`.

        With `stream=true` the answer is its events, as those of `/v1/inferlets/{inferlet}/events`, and `Location` has
        its path. Such an inferlet ends when its client disconnects; any does whose client has left before the
        answer."""
        body = await read_body(request, LaunchBody)
        with launches.launching(request.client) as launched:
            inferlet = await caller.api.launch(
                body.program, body.arguments, environment=body.environment, blobs=body.blobs
            )
            launched(inferlet)
            if stream:
                left = functools.partial(caller.api.terminate, inferlet.id, "the client that streamed it has left")
                return EventStream(inferlet, attachments, SentEvents(), end=left)
            if await request.is_disconnected():  # nobody gets its id, and who asks again would have two
                caller.api.terminate(inferlet.id, "its client left before it was launched")
        return inferlet.info()


def _add_looks(router: APIRouter) -> None:
    """What inferlets do, and how they are ended."""

    @router.get("", summary="List inferlets", response_class=Response, responses=LISTED)
    async def list_inferlets(
        caller: FromTenant,
        of_all: Annotated[bool, Query(description="Of all tenants, for who may see them.")] = False,
    ) -> Response:
        """Running and recently ended inferlets, with what each waits for, and since when. A `result` of more than 1,000
        characters is null here, an `error` cut. Those of other tenants have neither."""
        if of_all:
            caller.check_sees_all()
            found = await caller.api.look_at_all(of_all=True)
            return Response(await encoded_list(found), media_type="application/json")
        return Response(bytes(await caller.listing.encoded()), media_type="application/json")

    @router.get("/{inferlet}", summary="Look at an inferlet", responses=failures(404))
    async def get_inferlet(inferlet: str, caller: FromTenant) -> InferletInfo:
        """Its status, result or error, what it uses, what it waits for and since when."""
        return await caller.api.look_at(inferlet)

    @router.post("/{inferlet}/stack", summary="Ask an inferlet where its tasks are", responses=failures(404))
    async def stack(inferlet: str, caller: FromTenant) -> InferletInfo:
        """A line of its log tells soon where each of its tasks is, unless it computes, or waits for the model alone."""
        return await caller.api.look_at(inferlet, stack=True)

    @router.delete("/{inferlet}", summary="End an inferlet", responses=failures(404))
    async def terminate(inferlet: str, caller: FromTenant) -> InferletInfo:
        """Ends it and frees what it holds. Nothing happens if it has ended already."""
        caller.api.terminate(inferlet, "terminated by a client")
        return caller.api.inferlet(inferlet).info()

    @router.get(
        "/{inferlet}/logs",
        summary="Read the log of an inferlet",
        response_class=Response,
        responses=LOGGED | failures(404),
    )
    async def logs(
        inferlet: str,
        caller: FromTenant,
        after: Annotated[int, Query(ge=0, description="Only lines behind the one of this `number`.")] = 0,
    ) -> Response:
        """Lines of stdout, stderr and `log`, oldest first. The server keeps the newest lines, within bounds. Who
        may see all tenants (`may_see_all`, a key that may `admin`) reads those of all; the audit log tells of it."""
        found = await encoded_logs(caller.api, inferlet, after, of_all=caller.sees_all)
        return Response(found, media_type="application/json")


def _add_talk(router: APIRouter, attachments: Attachments, sent: WeakKeyDictionary[Entry, SentEvents]) -> None:
    """Messages to inferlets, and their events."""

    @router.post(
        "/{inferlet}/messages",
        status_code=202,
        summary="Send a message to an inferlet",
        openapi_extra=MESSAGE,
        responses=failures(404, 409, 413),
    )
    async def send(inferlet: str, request: Request, caller: FromTenant) -> InferletInfo:
        """409 `conflict` if it has ended, 503 `overloaded` if it does not keep up."""
        target = caller.api.inferlet(inferlet)
        body = await read_body(request, MessageBody)
        caller.api.send(target.id, body.text, body.blobs)
        return target.info()

    @router.get(
        "/{inferlet}/events",
        summary="Stream the events of an inferlet",
        response_class=StreamingResponse,
        responses=failures(404, 409),
    )
    async def events(
        inferlet: str,
        caller: FromTenant,
        last_event_id: Annotated[str | None, Header(description="The last event that the client has.")] = None,
    ) -> StreamingResponse:
        """Server-sent events: `message` {text}, `log` {time, stream, text}, at the end `ended` {status, result, error}.

        Events that nobody has read come first, with `Last-Event-ID` before them those that were sent behind that one,
        as far as they are kept. Only one client may read; a second one gets 409 `conflict`. The inferlet continues when
        the client disconnects. Try `curl -N`.
        """
        found = caller.api.inferlet(inferlet)
        return EventStream(found, attachments, sent.setdefault(found, SentEvents()), last_event_id)
