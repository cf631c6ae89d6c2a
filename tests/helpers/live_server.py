"""A whole server with its HTTP API on a thread, for the command line and for clients without `async`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.fake_server_api import on_thread
from tests.helpers.servers import started


def live_server(cache_dir: Path, **options: object) -> contextlib.AbstractContextManager[str]:
    """Its address. The sandbox, the hosts and HTTP are real; so is the model if `model` names one, else it is fake."""
    return on_thread(_serving(cache_dir, options))


@contextlib.asynccontextmanager
async def _serving(cache_dir: Path, options: dict[str, object]) -> AsyncIterator[str]:
    clients = () if "model" in options else (InProcessClient(FakeModel()),)
    async with started(cache_dir, *clients, **options) as api:
        server = HttpServer(api, bind("127.0.0.1", 0), api.config)
        await server.start()
        yield server.url
        await api.close()
        await server.close()
