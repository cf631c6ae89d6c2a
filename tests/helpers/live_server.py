"""A whole server with its HTTP API on a thread, for the command line and for clients without `async`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import started


@contextlib.contextmanager
def live_server(cache_dir: Path, **options: object) -> Iterator[str]:
    """Its address. The sandbox, the hosts and HTTP are real; so is the model if `model` names one, else it is fake."""
    clients = () if "model" in options else (InProcessClient(FakeModel()),)
    ready = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with started(cache_dir, *clients, **options) as api:
            server = HttpServer(api, bind("127.0.0.1", 0), api.config)
            await server.start()
            found.extend((server.url, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()
            await api.close()
            await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)  # one that is late is not waited for
    thread.start()
    try:
        assert ready.wait(HANG_SECONDS)
        yield found[0]
    finally:
        if found:
            found[1].call_soon_threadsafe(found[2].set)
            thread.join()
