"""A server for programs of the calling thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...client.running import Content
from ...errors import PieError
from ...inferlets.events import Ended, Event
from ...programs.warm_pool import WarmPool
from ...runtime import ClientFactory, build_server_without_sandbox
from ...sandbox.contract import Contract
from ..server_thread import Heard, ServerThread
from . import program
from .instance import InferletGone, NativeInstance
from .programs import NativePrograms

if TYPE_CHECKING:
    from ...config import ServerConfig

NOTHING: Mapping[str, str] = MappingProxyType({})
UNBOUNDED = 1e9
"""Seconds: who debugs thinks for a while."""


class NativeServer(ServerThread):
    """Runs programs outside of the sandbox, one at a time, on the thread that calls `run`."""

    _programs: NativePrograms

    def __init__(self, config: ServerConfig, make_client: ClientFactory | None = None) -> None:
        super().__init__()
        limits = replace(config.limits, cpu_seconds=UNBOUNDED, idle_seconds=UNBOUNDED)
        self._config = replace(config, hosts=0, warm_pool=0, max_guest_bytes=1 << 62, limits=limits)
        self._make_client = make_client
        self._folder = tempfile.TemporaryDirectory(prefix="pie-native-")

    async def _begin(self) -> None:
        def make_programs(contract: Contract, memory_bytes: int, pool: WarmPool) -> NativePrograms:
            self._programs = NativePrograms(contract, memory_bytes, pool)
            return self._programs

        folder = Path(self._folder.name)
        self._api = build_server_without_sandbox(self._config, make_programs, folder, self._make_client)
        await self._api.start()

    def _stop(self) -> None:
        super()._stop()
        self._folder.cleanup()

    def run(
        self,
        source: program.Source,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] = NOTHING,
        tell: Callable[[Event], None] = lambda _: None,
        began: Callable[[str], object] = lambda _: None,
        got: Callable[[Sequence[int]], None] = lambda _: None,
        blobs: Mapping[str, Content] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> Ended:
        """Runs a program to its end, on this thread. `tell` hears its events, on the server's; `began` its id, before
        it begins; `got` tokens from the model, as the program gets them; `failed` the exception that ends it. `blobs`:
        files or bytes by name. Raises PieError."""
        heard = Heard(tell)
        instance = self.call(self._launch(source, arguments, environment, heard, blobs or {}))
        began(instance.owner.inferlet.id)
        error: str | None = "the program was interrupted"
        try:
            error = program.run(source, instance, self._programs.contract, got, failed)
        finally:
            with contextlib.suppress(InferletGone):  # the inferlet has ended before its program
                instance.finish(error)
        return heard.wait()

    async def _launch(
        self,
        source: program.Source,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        heard: Heard,
        blobs: Mapping[str, Content],
    ) -> NativeInstance:
        path = str(source.path)
        found = await self._api.upload(f"# {os.getpid()} {path}".encode(), source.name)
        kept = await self.upload(blobs)
        self._programs.expects = True
        entry = await self._api.launch(found.program, arguments, environment=environment, blobs=kept, listener=heard)
        while entry.id not in self._programs.instances:  # the host has not heard of it yet
            if heard.end is not None:
                raise PieError(f"{path} could not be launched: {heard.end.error}")
            await asyncio.sleep(0)
        return self._programs.instances.pop(entry.id)


@contextlib.contextmanager
def native_server(config: ServerConfig, make_client: ClientFactory | None = None) -> Iterator[NativeServer]:
    """Starts a server and stops it at the end. Raises PieError."""
    server = NativeServer(config, make_client)
    server.start()
    try:
        yield server
    finally:
        server.close()
