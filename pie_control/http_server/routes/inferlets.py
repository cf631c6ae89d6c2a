"""`/v1/inferlets`: launch inferlets, talk to them, end them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from pie_control.inferlets.inferlet import InferletInfo
from pie_control.server_api import ServerApi

from ..attachments import Attachments
from ..launches import Launches
from ..views import Listing, LogEntry, log_entries
from .event_stream import stream_events


class LaunchBody(BaseModel):
    """What to launch."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"program": "hello", "arguments": ["--name", "Ada"]}]}
    )
    program: str = Field(description="Content hash, a unique beginning of one (8 characters or more), or a name.")
    arguments: list[str] = Field(default=[], description="What the inferlet reads by `get_arg`.")
    environment: dict[str, str] = Field(default={}, description="Entries that the inferlet reads by `get_env`.")


class MessageBody(BaseModel):
    """A message to an inferlet."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "What is a page?"}]})
    text: str = Field(description="What the inferlet's `receive` returns.")


LISTED: dict[int | str, dict[str, Any]] = {200: {"model": list[InferletInfo]}}


def inferlets_router(api: ServerApi, attachments: Attachments, launches: Launches, listing: Listing) -> APIRouter:
    """Routes over the inferlets of the server."""
    router = APIRouter(prefix="/v1/inferlets", tags=["inferlets"])

    @router.post("", status_code=201, summary="Launch an inferlet")
    async def launch(body: LaunchBody, request: Request) -> InferletInfo:
        """Starts an inferlet that runs until it ends by itself or is deleted. The server keeps its messages, within
        bounds, until `events` or a session reads them. To launch many and to stream, use `WS /v1/session`."""
        with launches.launching(request.client) as launched:
            inferlet = await api.launch(body.program, body.arguments, environment=body.environment)
            launched(inferlet)
        return inferlet.info()

    @router.get("", summary="List inferlets", response_class=Response, responses=LISTED)
    async def list_inferlets() -> Response:
        """Running and recently ended inferlets."""
        return Response(bytes(listing.encoded()), media_type="application/json")

    @router.get("/{inferlet}", summary="Look at an inferlet")
    async def get_inferlet(inferlet: str) -> InferletInfo:
        """Its status, result or error, and what it uses."""
        return api.inferlet(inferlet).info()

    @router.delete("/{inferlet}", summary="End an inferlet")
    async def terminate(inferlet: str) -> InferletInfo:
        """Ends it and frees what it holds. Nothing happens if it has ended already."""
        api.terminate(inferlet, "terminated by a client")
        return api.inferlet(inferlet).info()

    @router.get("/{inferlet}/logs", summary="Read the log of an inferlet")
    async def logs(inferlet: str) -> list[LogEntry]:
        """Lines of stdout, stderr and `log`, oldest first. The server keeps the newest lines, within bounds."""
        return log_entries(api, inferlet)

    @router.post("/{inferlet}/messages", status_code=202, summary="Send a message to an inferlet")
    async def send(inferlet: str, body: MessageBody) -> InferletInfo:
        """409 `conflict` if it has ended, 503 `overloaded` if it does not keep up."""
        target = api.inferlet(inferlet)
        target.send(body.text)
        return target.info()

    @router.get("/{inferlet}/events", summary="Stream the events of an inferlet", response_class=StreamingResponse)
    async def events(inferlet: str) -> StreamingResponse:
        """Server-sent events: `message` {text}, `log` {time, stream, text}, at the end `ended` {status, result, error}.

        Events that nobody has read come first. Only one client may read; a second one gets 409 `conflict`. The inferlet
        continues when the client disconnects. Try `curl -N`.
        """
        return stream_events(api.inferlet(inferlet), attachments)

    return router
