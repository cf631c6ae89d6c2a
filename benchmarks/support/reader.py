"""A client in a process of its own, so that reading takes nothing from what is measured, and its cost is known.

`Reader` is the benchmark's side: it tells the process what to launch, and when inferlets start. The process does as
little as it can for each message: it notes when the first and the last one of each inferlet came, and how many
characters.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from pie_control.client.connection import session_url
from pie_control.http_server import messages as wire
from pie_control.inferlets.events import Ended, Message


@dataclass(frozen=True)
class Read:
    """What came from the start to the last character. `first` and `last`: seconds from the start to the first and the
    last message of each inferlet; `between`: characters after the first message. `processor`: seconds that the process
    used."""

    first: list[float]
    last: list[float]
    between: list[int]
    processor: float


class Reader:
    """The process, for the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def launch(self, program: str, count: int, arguments: Sequence[str]) -> None:
        """Launches inferlets and waits until each has sent "ready"."""
        await self._ask(launch=[program, count, list(arguments)])

    async def aim(self, start: float) -> None:
        """Sends all of them the time when to start, in seconds since the epoch."""
        await self._ask(aim=start)

    async def read(self, start: float, characters: int) -> Read:
        """Waits until each has sent this number of characters."""
        return Read(**await self._ask(read=[start, characters]))

    async def end(self) -> None:
        """Ends them."""
        await self._ask(end=True)

    async def _ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that reads has ended: its error stands above")
        return json.loads(answer)


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Reader]:
    """A process that reads from the server at `url`."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "benchmarks.support.reader", url)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 24)
    try:
        yield Reader(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()  # ends it
        await process.wait()


# ---- in the process --------------------------------------------------------------------------------------------------


class _Inferlets:
    """Those that are launched, by their ids."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids: list[str] = []

    async def launch(self, program: str, count: int, arguments: list[str]) -> None:
        await self._send(
            [wire.LaunchInferlet(id=number, program=program, arguments=arguments) for number in range(count)]
        )
        ready = 0
        while ready < count:
            for message in await self._receive():
                if isinstance(message, wire.Reply):
                    self._ids.append(message.value)
                elif isinstance(message, Message):
                    ready += 1

    async def aim(self, start: float) -> None:
        left = len(self._ids)
        await self._send(
            [wire.Send(id=number, inferlet=id, text=str(round(1e9 * start))) for number, id in enumerate(self._ids)]
        )
        while left:
            left -= sum(isinstance(message, wire.Reply) for message in await self._receive())

    async def read(self, start: float, characters: int) -> Read:
        order = {id: number for number, id in enumerate(self._ids)}
        count = len(order)
        first, last, seen, before = [0.0] * count, [0.0] * count, [0] * count, [0] * count
        used, left = _processor(), count
        while left:
            messages = await self._receive()
            now = time.time() - start
            for message in messages:
                if isinstance(message, Message):
                    number, size = order[message.inferlet], len(message.text)
                    if not seen[number]:
                        first[number], before[number] = now, size
                    last[number] = now
                    seen[number] += size
                    left -= seen[number] >= characters > seen[number] - size
        return Read(first, last, [all - some for all, some in zip(seen, before, strict=True)], _processor() - used)

    async def end(self) -> None:
        left = len(self._ids)
        await self._send([wire.Terminate(id=number, inferlet=id) for number, id in enumerate(self._ids)])
        self._ids.clear()
        while left:
            left -= sum(isinstance(message, Ended) for message in await self._receive(over=True))

    async def _send(self, requests: Sequence[wire.Request]) -> None:
        for begin in range(0, len(requests), wire.MAX_REQUESTS):
            await self._socket.send(wire.encode(requests[begin : begin + wire.MAX_REQUESTS]).decode())

    async def _receive(self, over: bool = False) -> list[wire.FromServer]:
        """The messages of the next frame. Raises RuntimeError if something went wrong, or unless `over` ended."""
        messages = wire.decode_frame(await self._socket.recv())
        for message in messages:
            if isinstance(message, wire.Error) or (isinstance(message, Ended) and not over):
                raise RuntimeError(f"the server said {message}")
        return messages


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _serve(url: str) -> None:
    """Carries out orders from stdin until it ends."""
    async with connect(session_url(url), compression=None, max_size=None, proxy=None) as socket:
        inferlets = _Inferlets(socket)
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer: dict[str, Any] = {}
            match json.loads(line):
                case {"launch": [program, count, arguments]}:
                    await inferlets.launch(program, count, arguments)
                case {"aim": start}:
                    await inferlets.aim(start)
                case {"read": [start, characters]}:
                    answer = vars(await inferlets.read(start, characters))
                case _:
                    await inferlets.end()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
