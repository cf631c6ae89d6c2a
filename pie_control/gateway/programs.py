"""The programs of the routes: those that come with the package, in `programs/bundled/`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from ..programs.store import SERVER
from ..server_api import ServerApi
from ..tenants.tenant import Standing, Tenant

FOLDER = Path(__file__).parents[1] / "programs" / "bundled"
ROUTES = {
    "/v1/chat/completions": "chat_completions",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/tokenize": "tokens",
    "/detokenize": "tokens",
}
"""The program of each route."""


class RoutePrograms:
    """Each program is uploaded when it is first asked for, and stays. Belongs to one event loop."""

    def __init__(self, server: ServerApi, own: Mapping[str, bytes]) -> None:
        """`own`: programs of the operator, by the names of those that they replace."""
        self._server = server
        self._own = own
        self._uploads: dict[str, asyncio.Task[str]] = {}

    async def find(self, route: str) -> str:
        """The hash of the program of a route, which SERVER keeps. Raises what `TenantApi.upload` does."""
        name = ROUTES[route]
        if name not in self._uploads:
            self._uploads[name] = asyncio.create_task(self._upload(name))
        task = self._uploads[name]
        try:
            return await asyncio.shield(task)  # others may wait for it
        except BaseException:
            if task.done() and self._uploads.get(name) is task:
                del self._uploads[name]  # the next request tries again
            raise

    async def _upload(self, name: str) -> str:
        path = FOLDER / name / f"{name}.py"
        data = self._own[name] if name in self._own else await asyncio.to_thread(path.read_bytes)
        owner = self._server.of(Standing(Tenant(SERVER)))
        return (await owner.upload(data, name, path.name)).program
