"""Starts a `pie serve` process for a benchmark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import benchmarks
import pie_control
from pie_control.config import ServerConfig

from ..report import BenchmarkError
from .processes import stop

SHARED = ("guest", "kernels")
"""Folders of the user's cache that the benchmark's cache shares: their content takes 15 seconds to compile."""
PIE = ("pie_control.cli", "serve")
CLOSED = ("benchmarks.opponents.closed",)
"""The modules of servers: Pie, and its opponent without programs."""


@dataclass(frozen=True)
class Server:
    """A running server. `pid` is the control process; the worker is its child."""

    url: str
    pid: int


@contextlib.contextmanager
def cache_folder() -> Iterator[Path]:
    """A temporary cache folder without programs, so that each upload really stores a program."""
    own = Path(ServerConfig().resolved().cache_dir)
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-") as name:
        for shared in SHARED:
            (own / shared).mkdir(parents=True, exist_ok=True, mode=0o700)
            (Path(name) / shared).symlink_to(own / shared)
        yield Path(name)


@contextlib.asynccontextmanager
async def serving(
    command: Sequence[str] = PIE, /, *, tree: Path | None = None, **settings: object
) -> AsyncIterator[Server]:
    """Runs `pie serve`, or another command that says where it serves as that does, on a free port with these settings
    (`max_inferlets=2000`). Raises BenchmarkError, with the end of its log, if it does not start.

    `tree`: the folder with the packages to serve with (a checkout of another commit), if not those of this process.
    """
    with cache_folder() as cache, tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *command),
            *_options({"port": 0, "cache_dir": cache, **settings}),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors.fileno(),
            **_from(tree, XDG_STATE_HOME=str(cache)),  # the user's has one server at a time
        )
        try:
            assert process.stdout is not None
            first = (await process.stdout.readline()).decode()
            if not first.startswith("serving "):
                errors.seek(0)
                end = errors.read()[-2000:].decode(errors="replace")
                raise BenchmarkError(f"{' '.join(command)} did not start: {end}")
            yield Server(first.split(" at ")[1].split()[0], process.pid)
        finally:
            await stop(process)


@contextlib.asynccontextmanager
async def listening_worker(model: str, pace: str, tree: Path | None = None) -> AsyncIterator[dict[str, object]]:
    """Runs `pie worker` at a free port of the loopback, with a secret. Gives the settings of a server that uses it.
    `model` and `pace` are its options `--model` and `--worker`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-") as folder:
        secret = Path(folder) / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pie_control.cli", "worker"),
            *_options({"listen": address, "secret_file": secret, "model": model, "worker": pace}),
            stderr=asyncio.subprocess.DEVNULL,
            **_from(tree),
        )
        try:
            yield {"worker": address, "secret_file": secret}
        finally:
            await stop(process)


def _from(tree: Path | None, **more: str) -> dict[str, Any]:
    """The folder and the environment of a server and of its processes. Packages come from `tree`, or from where this
    process has them, which for `compare` are two folders: its benchmarks and another commit's packages. Pie has no
    settings but `more`."""
    here = (Path(str(package.__file__)).absolute().parents[1] for package in (benchmarks, pie_control))
    folders = list(dict.fromkeys(map(str, here))) if tree is None else [str(tree.resolve())]
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIE_")}
    return {"cwd": folders[0], "env": {**own, "PYTHONPATH": path, **more}}  # `python -m` looks in `cwd` first


def _options(settings: dict[str, object]) -> list[str]:
    """A setting that is a list is given several times, one that is True without a value."""
    return [
        word
        for name, value in settings.items()
        for one in (value if isinstance(value, list) else [value])
        for word in (f"--{name.replace('_', '-')}", *(() if one is True else (str(one),)))
    ]


def scheduler_counts(statistics: dict[str, Any]) -> dict[str, Any]:
    """What the scheduler of the first worker of the first model has counted, in the statistics of a server."""
    counts: dict[str, Any] = next(iter(statistics["models"].values()))[0]["scheduler"]
    return counts
