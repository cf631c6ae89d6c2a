"""`/v1/responses/{id}`: answers that are stored, also while they are made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pie_control.errors import PieError
from pie_control.gateway.gateway import Gateway
from pie_control.gateway.refusal import Refused
from pie_control.gateway.stored.running import Running
from pie_control.gateway.stored.store import MOST_MEMBERS, StoredAnswers
from pie_control.services.nesting import outline_of

from ..callers import FromTenant
from ..messages import encode
from ..routes.failures import failures
from .dialects import RESPONSES
from .sending import JSON, send_events

AFTER = "starting_after"
MOST_ITEMS = 100
LISTED: dict[int | str, dict[str, Any]] = {200: {"model": dict[str, Any]}}


class _Identified(msgspec.Struct):
    id: str | None = None


_ids = msgspec.json.Decoder(_Identified)


def stored_router(gateway: Gateway) -> APIRouter:
    """Routes over the stored answers of a tenant."""
    router = APIRouter(prefix="/v1/responses", tags=["served by programs"])
    _add_looks(router, gateway.stored)
    _add_ends(router, gateway.stored)
    return router


def _add_looks(router: APIRouter, stored: StoredAnswers) -> None:
    """What was answered, and what was asked."""

    @router.get("/{response}", summary="Look at a stored response", response_class=Response, responses=failures(404))
    async def get_response(
        response: str,
        caller: FromTenant,
        stream: Annotated[bool, Query(description="Its events, also those that are still to come.")] = False,
        starting_after: Annotated[
            int | None, Query(ge=0, description="With `stream`: only the events behind this `sequence_number`.")
        ] = None,
        last_event_id: Annotated[str | None, Header(description="The same, as browsers send it.")] = None,
    ) -> Response:
        """What the program has answered, or knows by now. With `stream`, its events, if it was asked for a stream: the
        client that lost its connection goes on behind the last one that it got. 404 `response_not_found`."""
        tenant = caller.api.standing.tenant.name
        found = await stored.read(tenant, partial(stored.find, tenant, response))
        if not stream:
            return _json(found.record.body)
        return _Events(found, _number(starting_after, last_event_id))

    @router.get(
        "/{response}/input_items",
        summary="List what a stored response was asked",
        response_class=Response,
        responses=LISTED | failures(404),
    )
    async def input_items(
        response: str,
        caller: FromTenant,
        limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 20,
        order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
        after: Annotated[str | None, Query(description="Only items behind the one of this `id`.")] = None,
    ) -> Response:
        """The items of its own request, the last one first; those of earlier ones belong to earlier responses."""

        tenant = caller.api.standing.tenant.name

        def page() -> bytes:
            items = _items_of(stored.find(tenant, response).record.input.encode())
            if order == "desc":
                items.reverse()
            return encode(_page(items, limit, after))

        return _json(await stored.read(tenant, page))


def _add_ends(router: APIRouter, stored: StoredAnswers) -> None:
    """How they are forgotten, and how those that are made end."""

    @router.delete("/{response}", summary="Delete a stored response", responses=failures(404))
    async def delete(response: str, caller: FromTenant) -> dict[str, Any]:
        """Forgets it. What makes it ends."""
        await stored.delete(caller.api.standing.tenant.name, response, _ending(caller, "deleted"))
        return {"id": response, "object": "response", "deleted": True}

    @router.post(
        "/{response}/cancel",
        summary="Cancel a response that is made in the background",
        response_class=Response,
        responses=failures(404),
    )
    async def cancel(response: str, caller: FromTenant) -> Response:
        """Its status is `cancelled` then. Nothing happens if it has ended."""
        tenant = caller.api.standing.tenant.name
        return _json((await stored.cancel(tenant, response, _ending(caller, "cancelled"))).body)


def _items_of(text: bytes) -> list[msgspec.Raw]:
    """The items of a JSON list. A decoder of all of them would hold up other threads."""
    text = text.strip()
    _, commas = outline_of(text, MOST_MEMBERS)
    ends = [*commas, len(text) - 1]
    items = (text[begin + 1 : end].strip() for begin, end in zip([0, *commas], ends, strict=True))
    return [msgspec.Raw(item) for item in items if item]


def _page(items: Sequence[msgspec.Raw], limit: int, after: str | None) -> dict[str, Any]:
    """A list of OpenAI's. Raises Refused if there is no item `after`."""
    rest = items
    if after is not None:
        place = next((place for place, one in enumerate(items) if _id_of(one) == after), None)
        if place is None:
            raise Refused(400, f"no item {after[:80]!r} in this response", None, "after")
        rest = items[place + 1 :]
    page = rest[:limit]
    first, last = (_id_of(page[0]), _id_of(page[-1])) if page else ("", "")
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(rest) > len(page)}


def _id_of(item: msgspec.Raw) -> str | None:
    """Nothing else is made of an item: it may be large, and is as its program has written it."""
    try:
        return _ids.decode(item).id
    except msgspec.DecodeError:
        return None


def _json(body: str | bytes) -> Response:
    return Response(body, media_type=JSON)


def _ending(caller: FromTenant, why: str) -> Any:
    return lambda inferlet: caller.api.terminate(inferlet, f"its response was {why} by a client")


def _number(starting_after: int | None, last_event_id: str | None) -> int:
    """The number of the first event that is wanted. Raises Refused."""
    if starting_after is not None:
        return starting_after + 1
    if last_event_id is None:
        return 0
    if not re.fullmatch("[0-9]{1,15}", last_event_id):
        raise Refused(400, f"Last-Event-ID: must be the number of an event, not {last_event_id[:40]!r}", None, AFTER)
    return int(last_event_id) + 1


class _Events(Response):
    """The events of a stored answer from a number on."""

    def __init__(self, running: Running, number: int) -> None:
        """Raises Refused if there are none, or not so many."""
        super().__init__()
        record, self._running, self._number = running.record, running, number
        if record.ended is None and running.is_over:
            raise Refused(503, "this response is about to begin again: try again in a moment", "overloaded")
        if not record.streamed:
            raise Refused(
                400, "this response was not asked for as a stream, or had more events than are kept", None, "stream"
            )
        if number > self._running.count:
            raise Refused(
                400, f"there is no event {number - 1} yet: the last one is {self._running.count - 1}", None, AFTER
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-inferlet-id", self._running.record.inferlet.encode())]
        try:
            await send_events(self._running, self._number, RESPONSES, headers, send)
        except PieError as error:
            await RESPONSES.answer(error)(scope, receive, send)
