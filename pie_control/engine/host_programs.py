"""The programs of an application host, over messages: see `pie_control.programs.program_host.ProgramHost`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ..application.messages import Compile, Forget, LinkComponent, LoadCode, Prepared, ToHost
from ..errors import BadProgram, Overloaded


class RemotePrograms:
    """What is asked of one host. `post` says it to the host; False: it is gone."""

    def __init__(self, post: Callable[[ToHost], bool]) -> None:
        self._post = post
        self._requests: dict[int, asyncio.Future[None]] = {}
        self._last_request = 0

    # ---- see `ProgramHost` ----

    async def compile(self, program: str, name: str, text: str, folder: Path, stem: str) -> None:
        await self._ask(lambda request: Compile(request, program, name, text, str(folder), stem))

    async def load(self, program: str, path: Path) -> None:
        await self._ask(lambda request: LoadCode(request, program, str(path)))

    async def link(self, program: str, path: Path) -> None:
        await self._ask(lambda request: LinkComponent(request, program, str(path)))

    def forget(self, program: str) -> None:
        self._post(Forget(program))

    # ---- requests and answers ----

    async def _ask(self, make: Callable[[int], ToHost]) -> None:
        self._last_request += 1
        request = self._last_request
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests[request] = answer
        try:
            if not self._post(make(request)):
                raise Overloaded(ENDED)
            await answer
        finally:
            self._requests.pop(request, None)

    def answered(self, message: Prepared) -> None:
        """The host has answered a request."""
        answer = self._requests.get(message.request)
        if answer is None or answer.done():
            return  # whoever asked waits no more
        if message.error is None:
            answer.set_result(None)
        else:
            answer.set_exception(BadProgram(message.error))

    def lost(self) -> None:
        """The host is gone, with all that it had."""
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(Overloaded(ENDED))


ENDED = "the application host that prepared the program has ended: try again"
