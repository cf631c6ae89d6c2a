"""Programs of tests in the sandbox, as a server runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.packages import name_of, read_program
from ..client.running import Content
from ..inferlets.events import Ended, Event
from ..runtime import ClientFactory, build_server
from .server_thread import Heard, ServerThread

if TYPE_CHECKING:
    from ..config import ServerConfig


class SandboxedServer(ServerThread):
    """Runs programs in the sandbox, one at a time; the calling thread waits."""

    def __init__(self, config: ServerConfig, make_client: ClientFactory | None = None) -> None:
        super().__init__()
        self._config = replace(config, hosts=0, warm_pool=1)
        self._make_client = make_client

    async def _begin(self) -> None:
        self._api = build_server(self._config, self._make_client)
        await self._api.start()

    def run(
        self,
        path: Path,
        arguments: Sequence[str],
        kwargs: Mapping[str, Any],
        tell: Callable[[Event], None],
        began: Callable[[str], None],
        blobs: Mapping[str, Content],
    ) -> Ended:
        """Runs a program to its end; `tell` hears its events, `began` its id. `blobs`: files or bytes by name. Raises
        PieError."""
        heard = Heard(tell)
        began(self.call(self._launch(path, arguments, kwargs, heard, blobs)))
        return heard.wait()

    async def _launch(
        self,
        path: Path,
        arguments: Sequence[str],
        kwargs: Mapping[str, Any],
        heard: Heard,
        blobs: Mapping[str, Content],
    ) -> str:
        found = await self._api.upload(read_program(path), file=name_of(path))
        given = {"kwargs": json.dumps(dict(kwargs))} if kwargs else {}
        kept = await self.upload(blobs)
        return (await self._api.launch(found.program, arguments, environment=given, blobs=kept, listener=heard)).id
