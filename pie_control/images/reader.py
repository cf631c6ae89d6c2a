"""Has images decoded by child processes, of which there are few, and none before the first image.

A process that dies, or takes too long, is dropped with the image that it had; the next image gets a new one. An image
that is given up is decoded to its end: who loads and cancels in a loop would start a process each time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from pie_inference.options.lifetime import command_of
from pie_inference.protocol import Vision

from ..fair_places import FairPlaces
from .messages import LENGTH_BYTES, ImageRefused, PreparedImage, PrepareImage, decode_answer, framed
from .tiling import BadImage, check_size, tiling_of

PLACES = 3
"""Images that are decoded at a time: two of a tenant, one of an inferlet."""
SECONDS = 5
"""One image has so much processor time: twice what the largest photo takes."""
PATIENCE = 100
"""Seconds by the clock for one image: the processes yield the processors to the server."""
OVER_TIME = -signal.SIGXCPU
"""The status of a process that has used more than its processor time."""
BUFFER_BYTES = 1 << 20
"""Most bytes of one answer that are read ahead."""
MOST_ANSWER = 64 << 10
"""Bytes of an answer, but for tiles."""
MEMORY_BYTES = 2 << 30
"""Address space of one process; Python and Pillow take a part of it."""


class ReadImage(NamedTuple):
    """A decoded image, and the processor time that it took, in seconds."""

    image: PreparedImage
    seconds: float


class _Gone(Exception):
    """The process has ended."""


class ImageReader:
    """Belongs to one event loop. Images wait for a place among those of their inferlet, then of their tenant."""

    def __init__(self) -> None:
        self._places = FairPlaces(PLACES)
        self._of_tenants = defaultdict[str, FairPlaces](lambda: FairPlaces(PLACES - 1))
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False

    async def read(
        self, tenant: str, inferlet: str, data: bytes | bytearray, vision: Vision, charge: Callable[[float], None]
    ) -> PreparedImage:
        """Prepares an image for a model; tenants have their turns, and within a tenant its inferlets. `charge` hears
        of the processor time, in seconds. Who is cancelled keeps the place until the image is done. Raises
        BadImage."""
        async with self._of_tenants[tenant].place(inferlet), self._places.place(tenant):
            reading = asyncio.get_running_loop().create_task(self._read(data, vision, charge))
            try:
                return await asyncio.shield(reading)
            except asyncio.CancelledError:
                await asyncio.wait([reading])
                raise

    async def _read(self, data: bytes | bytearray, vision: Vision, charge: Callable[[float], None]) -> PreparedImage:
        try:
            child = self._idle.pop() if self._idle else await _Child.start()
        except OSError as error:
            raise BadImage(f"the process that decodes images cannot be started now: {error}") from None
        self._busy.add(child)
        keep, seconds = False, float(SECONDS)
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await child.ask(PrepareImage(vision, bytes(data)))
            keep, seconds = True, answer.seconds
        except TimeoutError:
            raise BadImage(f"the image was not decoded within {PATIENCE} s: try again") from None
        except _Gone:
            reason = "the image cannot be decoded: its decoder died of it"
            if child.kill() == OVER_TIME:
                reason = f"the image takes more than {SECONDS} s to decode: send a smaller one, or another format"
            raise BadImage(reason) from None
        finally:
            charge(seconds)
            self._busy.discard(child)
            if keep and not self._closed:
                self._idle.append(child)
            else:
                child.kill()
        if isinstance(answer, ImageRefused):
            raise BadImage(answer.reason)
        return answer.image

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        self._closed = True
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle.clear()


class _Child:
    """One process, behind a pair of sockets."""

    def __init__(
        self, process: subprocess.Popen[bytes], answers: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        self._process, self._from, self._to = process, answers, to

    @classmethod
    async def start(cls) -> _Child:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        command = [*command_of(f"{__package__}.child"), str(os.getpid()), str(MEMORY_BYTES), str(SECONDS)]
        with theirs:
            end = theirs.fileno()
            process = subprocess.Popen(command, stdin=end, stdout=end)
        return cls(process, *await asyncio.open_connection(sock=ours, limit=BUFFER_BYTES))

    async def ask(self, request: PrepareImage) -> ReadImage | ImageRefused:
        """Raises _Gone."""
        try:
            self._to.write(framed(request))
            await self._to.drain()
            answer = decode_answer(await self._frame())
            if isinstance(answer, ImageRefused):
                return answer
            size = 3 * request.vision.tile_size**2
            check_size(answer.width, answer.height)
            if answer.tiles != tiling_of(request.vision, answer.width, answer.height).tiles:
                raise ValueError("not as many tiles as there must be")
            tiles = [await self._frame(size) for _ in range(answer.tiles)]
        except (OSError, EOFError, ValueError):  # it died, or does not do any more what it should
            raise _Gone from None
        return ReadImage(PreparedImage(answer.width, answer.height, tiles), answer.seconds)

    async def _frame(self, size: int | None = None) -> bytes:
        length = int.from_bytes(await self._from.readexactly(LENGTH_BYTES), "little")
        if length > MOST_ANSWER if size is None else length != size:
            raise ValueError(f"a frame of {length} bytes")
        return await self._from.readexactly(length)

    def kill(self) -> int:
        """Ends the process at once, unless it has ended; returns its status. Idempotent."""
        self._to.transport.abort()
        self._process.kill()
        return self._process.wait()  # so that it leaves nothing
