"""What some calls need beside a model: a LoRA adapter of the demo model, and a server outside."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from testing.adapters.files import make_adapter

RANK, HIDDEN, LAYERS = 8, 256, 5
"""Of the adapter; the others are the demo model's."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nnine\n"


@contextmanager
def demo_adapter() -> Iterator[Path]:
    """The folder of an adapter of the query projections, with random weights."""
    query = {"self_attn.q_proj": (HIDDEN, HIDDEN)}
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-adapter-") as name:
        yield make_adapter(Path(name), rank=RANK, modules=list(query), layers=LAYERS, sizes=query)


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """A server on this machine that answers every request alike: `127.0.0.1:PORT`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
