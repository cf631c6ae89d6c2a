"""Where `pie run` runs its inferlet: on a server, or in this process without a network."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_control.client.programs.packages import name_of, read_file, read_program
from pie_control.client.running import Content, Running
from pie_control.errors import UnknownName

from .patience import explaining_slow_start
from .programs import built, find_program
from .terminal import write_line

if TYPE_CHECKING:
    from pie_control.client import Client
    from pie_control.config import ServerConfig
    from pie_control.inferlets.events import LogLine
    from pie_control.server_api import ServerApi


Launch = Callable[[Sequence[str], Mapping[str, Path]], Awaitable[Running]]
"""Starts an inferlet with arguments and the content of files, by names; its events include log lines."""


async def launch(
    client: Client, program: str, arguments: Sequence[str], blobs: Mapping[str, Path], model: str, **options: bool
) -> Running:
    """Launches FILE|FOLDER|NAME on a model of the server, or on its first one where none is named."""
    environment = {}
    if model:
        if model not in (known := [each["name"] for each in await client.models()]):
            raise UnknownName(f"no model {model!r}: this server has {', '.join(known)}")
        environment = {"model": model}
    reference = await stored(client, program)
    return await client.launch(reference, *arguments, environment=environment, blobs=blobs, **options)


async def stored(client: Client, program: str) -> str:
    """The hash, or the beginning of one, by which a server launches FILE|FOLDER|NAME. It gets a file by its content: no
    name is taken."""
    found, note = find_program(program, await client.programs())
    _tell(note)
    return await client.upload(await asyncio.to_thread(built, found), "") if isinstance(found, Path) else found


def _tell(note: str) -> None:
    if note:
        write_line(f"pie: {note}", sys.stderr)


class OwnTarget:
    """A server in this process, without HTTP; it is the `Link` of its inferlets."""

    def __init__(self, api: ServerApi, program: Path | str) -> None:
        """`program`: a file or folder in Python, a component, or the hash of one that the server has."""
        self._api, self._program = api, program

    async def launch(self, arguments: Sequence[str], blobs: Mapping[str, Path]) -> Running:
        found = self._program
        if isinstance(found, Path):
            found = (await self._api.upload(read_program(found), file=name_of(found))).program
        running = Running("", self)
        uploaded = {name: await self._api.upload_blob(path.read_bytes()) for name, path in blobs.items()}
        inferlet = await self._api.launch(found, arguments, blobs=uploaded, listener=running.deliver)
        running.id = inferlet.id
        return running

    async def send(self, inferlet: str, text: str, blobs: Mapping[str, Content]) -> None:
        contents = {name: blob if isinstance(blob, bytes) else read_file(Path(blob)) for name, blob in blobs.items()}
        uploaded = {name: await self._api.upload_blob(content) for name, content in contents.items()}
        self._api.send(inferlet, text, uploaded)

    async def terminate(self, inferlet: str, reason: str = "terminated by its client") -> None:
        self._api.terminate(inferlet, reason)

    async def inferlet(self, inferlet: str, stack: bool = False) -> dict[str, Any]:
        return asdict(await self._api.look_at(inferlet, stack))

    async def logs(self, inferlet: str) -> tuple[LogLine, ...]:
        return self._api.inferlet(inferlet).logs()


@contextlib.asynccontextmanager
async def server(url: str, program: str, token: str | None = None, model: str = "") -> AsyncIterator[Launch]:
    """Connects to a running server, on which FILE|FOLDER|NAME runs on a model (default: its first one). Raises
    ServerUnavailable, Unauthorized."""
    from pie_control.client import Client

    async with Client(url, token) as client:
        yield lambda arguments, blobs: launch(client, program, arguments, blobs, model, logs=True)


@contextlib.asynccontextmanager
async def own_server(config: ServerConfig, program: str) -> AsyncIterator[Launch]:
    """Starts a server and its workers, if it can find and build FILE|FOLDER|NAME, and stops them at the end; raises
    UnknownName, BadProgram, WorkerUnavailable."""
    from pie_control.authoring.check import check_syntax
    from pie_control.runtime import build_server

    api = build_server(replace(config, warm_pool=0))  # one launch needs no warm pool
    try:
        found, note = find_program(program, [asdict(each) for each in api.programs()])
        _tell(note)
        if isinstance(found, Path):
            found = await asyncio.to_thread(built, found)
            check_syntax(found)
        with explaining_slow_start():
            await api.start()
        yield OwnTarget(api, found).launch
    finally:
        await asyncio.shield(api.close())
