"""Programs of tests in the sandbox, as a server runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
        content: bytes,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[[Event], None],
        began: Callable[[str], object],
        blobs: Mapping[str, Content],
    ) -> Ended:
        """Runs the program of a content to its end; `tell` hears its events, `began` its id. `blobs`: files or bytes by
        name. Raises PieError."""
        heard = Heard(tell)
        began(self.call(self._launch(content, name, arguments, environment, heard, blobs)))
        return heard.wait()

    async def _launch(
        self,
        content: bytes,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        heard: Heard,
        blobs: Mapping[str, Content],
    ) -> str:
        found = await self._api.upload(content, file=name)
        kept = await self.upload(blobs)
        api, program = self._api, found.program
        return (await api.launch(program, arguments, environment=environment, blobs=kept, listener=heard)).id
