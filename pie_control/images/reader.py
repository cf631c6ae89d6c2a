"""Has images decoded by child processes, of which there are few, and none before the first image.

A process that dies, or takes too long, is dropped with the image that it had; the next image gets a new one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import NamedTuple

from pie_inference.protocol import Vision

from ..programs.fair_places import FairPlaces
from .messages import LENGTH_BYTES, Prepared, Refused, Request, decode_answer, framed
from .tiling import BadImage

PLACES = 2
"""Images that are decoded at a time, so that a slow one does not hold up all others."""
SECONDS = 20
"""For one image: a hundred times what a large photo takes."""
MEMORY_BYTES = 2 << 30
"""Of one process: address space, of which Python and Pillow take a part."""


class ReadImage(NamedTuple):
    """A decoded image, and the processor time that it took, in seconds."""

    image: Prepared
    seconds: float


class BadImageAfter(BadImage):
    """An image that cannot be taken, and the processor time that it took to find out, in seconds."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


class _Gone(Exception):
    """The process has ended."""


class ImageReader:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._places = FairPlaces(PLACES)
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False

    async def read(self, who: str, data: bytes, vision: Vision) -> ReadImage:
        """Prepares an image for a model; those of each of `who` have their turn. Raises BadImageAfter."""
        async with self._places.place(who):
            child = self._idle.pop() if self._idle else await _Child.start()
            self._busy.add(child)
            keep = False
            try:
                async with asyncio.timeout(SECONDS):
                    read = await child.ask(Request(vision, data))
                keep = True
                return read
            except BadImageAfter:
                keep = True
                raise
            except TimeoutError:
                raise BadImageAfter(
                    f"the image took more than {SECONDS} s to decode: send it in another format", SECONDS
                ) from None
            except _Gone:
                raise BadImageAfter("the image cannot be decoded: its decoder died of it", 1.0) from None
            finally:
                self._busy.discard(child)
                if keep and not self._closed:
                    self._idle.append(child)
                else:
                    child.kill()

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        self._closed = True
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle.clear()


class _Child:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout

    @classmethod
    async def start(cls) -> _Child:
        arguments = [f"{__package__}.child", str(os.getpid()), str(MEMORY_BYTES), str(SECONDS)]
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )

    async def ask(self, request: Request) -> ReadImage:
        """Raises BadImageAfter, _Gone."""
        try:
            self._to.write(framed(request))
            await self._to.drain()
            answer = decode_answer(await self._frame())
            if isinstance(answer, Refused):
                raise BadImageAfter(answer.reason, answer.seconds)
            tiles = [await self._frame() for _ in range(answer.tiles)]
        except (OSError, asyncio.IncompleteReadError):
            raise _Gone from None
        prepared = Prepared(answer.width, answer.height, answer.rows, answer.columns, tiles)
        return ReadImage(prepared, answer.seconds)

    async def _frame(self) -> bytes:
        length = int.from_bytes(await self._from.readexactly(LENGTH_BYTES), "little")
        return await self._from.readexactly(length)

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process.returncode is None:
            self._process.kill()
