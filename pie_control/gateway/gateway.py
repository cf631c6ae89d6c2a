"""Requests of served routes become inferlets of those who send them (docs/serving-programs.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ..errors import UnknownName
from ..programs.store import SERVER
from ..server_api import ServerApi
from .images import images_of
from .line import WaitingLine
from .programs import RoutePrograms
from .refusal import Refused
from .request import ServedRequest, Target, find_target, unknown_model
from .stored.store import StoredAnswers

if TYPE_CHECKING:
    from ..registry.entry import Entry
    from ..tenant_api import TenantApi

BODY = "request"
"""The blob of the inferlet that is the body of the request; `images_of` names the others."""


STORED = "stored"
"""The blob that has earlier answers."""
SMALL = 4096
"""Bytes of a body in which images are looked for at once; for a larger one on a thread."""


class Gateway:
    """All methods belong to the thread of one event loop."""

    def __init__(self, server: ServerApi, programs: RoutePrograms, line: WaitingLine) -> None:
        self.line = line
        self.stored = StoredAnswers(server.responses, lambda: server.is_stopping)
        self._server = server
        self._programs = programs

    def models(self) -> Mapping[str, list[str]]:
        """The models, and the adapters of each, that requests can name."""
        found: dict[str, list[str]] = {model.name: [] for model in self._server.models()}
        for adapter in self._server.adapters.all():
            found[adapter.model].append(adapter.name)
        return found

    def find(self, name: str, api: TenantApi) -> Target:
        """What a tenant means by the name of a model; raises Refused."""
        target = find_target(name, self.models())
        if target.program and not any(target.program in (*one.names, one.program) for one in api.programs()):
            raise _no_program(target.program)
        return target

    async def launch(self, request: ServedRequest, api: TenantApi) -> Entry:
        """Starts the inferlet that serves a request of a tenant. Raises Refused, and what `TenantApi.launch` does."""
        target = find_target(request.model, self.models())
        program, owner = target.program, ""
        if not program:
            program, owner = await self._programs.find(request.route), SERVER
        environment = {
            "route": request.route,
            "request_id": request.id,
            "answer_id": request.answer_id,
            "model": target.model,
            "adapter": target.adapter,
        }
        body = request.body
        images = images_of(body) if len(body) <= SMALL else await asyncio.to_thread(images_of, body)
        try:
            return await api.launch(program, environment=environment, contents={BODY: body, **images}, owner=owner)
        except UnknownName:
            if owner:
                raise
            raise _no_program(program) from None

    async def tell_earlier(self, id: str, inferlet: Entry, api: TenantApi) -> None:
        """Sends an inferlet the stored answer that it wants, and those before it: the blob `stored`, and the images in
        it. Without blobs the message says why there is none. Raises Refused if they are too large, Overloaded if too
        much waits for inferlets now."""
        tenant = api.standing.tenant.name
        try:
            blobs = await self.stored.read(tenant, partial(self._earlier, tenant, id))
        except Refused as refused:
            inferlet.send(str(refused))
            return
        size, most = sum(map(len, blobs.values())), api.config.limits.max_blob_bytes
        if size > most:
            too_long = f"the conversation has {size} bytes, more than {most} (--max-blob-bytes): begin a new one"
            raise Refused(400, too_long, "context_length_exceeded")
        inferlet.send("", blobs)

    def _earlier(self, tenant: str, id: str) -> dict[str, bytes]:
        found = self.stored.conversation(tenant, id).encode()
        return {STORED: found, **images_of(found)}


def _no_program(program: str) -> Exception:
    return unknown_model(f"you have no program {program[:80]!r}: upload it first, or see GET /v1/programs")
