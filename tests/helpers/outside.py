"""What an inferlet of a `NativeHost` reaches, without a network or a process: web pages, images and children."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

from pie_control.authoring.native.instance import NativeInstance
from pie_control.errors import RequestFailed
from pie_control.host_api import core
from pie_control.images.messages import PreparedImage
from pie_control.images.tiling import BadImage, tiling_of
from pie_inference.protocol import Vision

Page = tuple[int | None, dict[str, str], bytes]
"""Status (None: the request fails, and the body says why), headers, body."""


class Web:
    """`pages` by URL, or what `answers` to requests; another URL answers with what it was asked. `asked`: the requests
    that came; `open`: connections that are there now."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.answers: Callable[[dict[str, Any]], Page] | None = None
        self.asked: list[dict[str, Any]] = []
        self.open = 0
        self.piece_bytes = 1000

    async def network(self) -> Web:
        """What connects."""
        return self

    async def send(self, request: Any, _sender: object) -> tuple[Web, SimpleNamespace]:
        self.open += 1
        try:
            return self, self._response(request)
        except RequestFailed:
            self.open -= 1
            raise

    @property
    def kept(self) -> Web:
        """Where connections are kept: here they are closed."""
        return self

    def keep(self, *_: object) -> None:
        self.open -= 1

    def _response(self, request: Any) -> SimpleNamespace:
        asked = {
            "method": request.method,
            "url": request.target.url,
            "headers": [list(header) for header in request.headers],
            "body": request.body.decode(),
        }
        self.asked.append(asked | {"timeout": request.seconds, "redirects": request.redirects})
        page = self.answers(asked) if self.answers is not None else self.pages.get(request.target.url)
        status, headers, body = page or (200, {}, json.dumps(asked).encode())
        if status is None:
            raise RequestFailed(body.decode())
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        pieces = self._pieces(body)
        return SimpleNamespace(status=status, headers=raw, aiter_stream=lambda: pieces, aclose=pieces.aclose)

    async def _pieces(self, body: bytes) -> AsyncGenerator[bytes]:
        for start in range(0, len(body), self.piece_bytes):
            yield body[start : start + self.piece_bytes]

    async def aclose(self) -> None:
        self.open -= 1


async def read_image(_tenant: str, _inferlet: str, data: bytes, vision: Vision, _charge: object) -> PreparedImage:
    """Raises BadImage for what begins with "broken"."""
    if data.startswith(b"broken"):
        raise BadImage("the image is broken")
    return prepared(data, vision)


def prepared(data: bytes, vision: Vision) -> PreparedImage:
    """An image of several tiles, which depend on the data."""
    side = vision.tile_size
    tiling = tiling_of(vision, side, side)
    size = 3 * vision.tile_size**2
    tiles = [hashlib.shake_128(data + bytes([n])).digest(size) for n in range(tiling.tiles)]
    return PreparedImage(side, side, tiles)


class Child(NativeInstance):
    """The instance of a child: it says what it is sent, up to "end"; a "writer" is sent nothing. Its result are its
    arguments."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._mail: list[int] = []

    def step(self) -> Any:
        guest = self.owner
        guest.put_result(json.dumps(guest.arguments))
        while guest.inferlet.launched.name != "writer":
            self._mail = self._mail or [core.receive(guest, 0)]
            if not guest.futures.done(self._mail):
                guest.inferlet.waits.await_futures(self._mail)
                return super().step()
            text, *_ = core._take_message(guest, self._mail.pop()) or ("end",)
            if text == "end":
                break
            core.send(guest, 0, text)
        self._is_done = True
        return super().step()

    def answer(self, *_: object) -> None:
        """It looks for itself whether its mail has come."""

    def outcome(self) -> str | None:
        return "it was told to fail" if "fail" in self.owner.arguments else None
