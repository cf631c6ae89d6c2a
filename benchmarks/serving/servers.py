"""Servers of completions that others wrote, on a checkpoint of ours: started here, or named by an address.

Each takes the settings that its makers recommend for many requests at a time on this device, and as many threads as
Pie's worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from ..opponents.client import CompletionClient, OpponentError
from ..opponents.sides import checkpoint_of, settings_of, threads_for
from ..support.models.gguf_file import gguf_of
from ..support.processes import stop
from ..support.server import CLOSED, serving
from .client import HttpClient

START_SECONDS = 300.0
POLL_SECONDS = 0.2
GREEDY = {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}


class CannotServeError(Exception):
    """A server is not installed here, or does not start."""


@dataclass(frozen=True)
class Server:
    """Where it serves, and the fields of a request beside prompt, length and `stream`."""

    url: str
    fields: Mapping[str, Any] = field(default_factory=lambda: GREEDY)


@contextlib.asynccontextmanager
async def closed(model: str, device: str, streams: int, tokens: int) -> AsyncIterator[Server]:
    """Pie's own worker in a plain server."""
    async with serving(CLOSED, **settings_of(model), device=device) as server:
        yield Server(server.url)


@contextlib.asynccontextmanager
async def llama_cpp(model: str, device: str, streams: int, tokens: int) -> AsyncIterator[Server]:
    """llama.cpp's server, `llama-server` in the PATH, on the checkpoint as a GGUF file in bfloat16."""
    if device != "cpu":
        raise CannotServeError("llama.cpp's server, as docs/benchmarks.md builds it, has no GPU: take --device cpu")
    program, folder = _found("llama-server", "build llama.cpp's llama-server"), checkpoint_of(model)
    try:
        file = await asyncio.to_thread(gguf_of, folder)
    except ImportError:
        raise CannotServeError("the package gguf is missing, which writes the checkpoint for llama.cpp") from None
    threads = str(threads_for(folder))
    words = [program, "-m", str(file), "-np", str(streams), "-c", str(streams * _room(tokens)), "-t", threads]
    async with _started([*words, "-tb", threads, "-b", "2048", "--no-webui", "--device", "none"], "/health") as url:
        yield Server(url)


@contextlib.asynccontextmanager
async def transformers(model: str, device: str, streams: int, tokens: int) -> AsyncIterator[Server]:
    """`transformers serve` with continuous batching. It counts tokens by itself, and refuses fields that it lacks."""
    program = _found("transformers", "pip install transformers[serving]")
    folder = checkpoint_of(model)
    words = [program, "serve", str(folder), "--device", device, "--dtype", "bfloat16", "--continuous-batching"]
    config = json.dumps({"max_new_tokens": tokens, "do_sample": False})
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads_for(folder))}
    async with _started([*words, "--host", "127.0.0.1"], "/health", environment) as url:
        yield Server(url, {"temperature": 0, "generation_config": config})


Start = Callable[[str, str, int, int], AbstractAsyncContextManager[Server]]
"""Serves a model on a device (`cpu` or `cuda`), for so many requests at a time of at most so many tokens. Raises
CannotServeError."""
PEERS: Mapping[str, Start] = {"closed": closed, "llama.cpp": llama_cpp, "transformers": transformers}


@contextlib.asynccontextmanager
async def at_address(url: str) -> AsyncIterator[Server]:
    """A server that runs: vLLM, SGLang or another one. Raises OpponentError if it is none of completions."""
    async with CompletionClient(url) as client:
        yield Server(url, {**GREEDY, "model": await client.model()})


def _room(tokens: int) -> int:
    return -(-tokens // 256) * 256


def _found(program: str, hint: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise CannotServeError(f"{program} is not in the PATH: {hint}")
    return found


@contextlib.asynccontextmanager
async def _started(
    words: Sequence[str], health: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """The address of a server that is started with `--port`, and says at the path `health` that it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *words, "--port", str(port), stdout=log.fileno(), stderr=log.fileno(), env=environment
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not await _is_ready(url + health, process):
                log.seek(0)
                raise CannotServeError(f"{words[0]} did not start: {log.read()[-500:].decode(errors='replace')}")
            yield url
        finally:
            await stop(process)


async def _is_ready(url: str, process: asyncio.subprocess.Process) -> bool:
    """Waits until the server answers, or has ended, or takes too long."""
    address, _, path = url.removeprefix("http://").partition("/")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS), HttpClient(address) as client:
            while process.returncode is None:
                with contextlib.suppress(OpponentError):
                    await client.get(f"/{path}")
                    return True
                await asyncio.sleep(POLL_SECONDS)
    return False
