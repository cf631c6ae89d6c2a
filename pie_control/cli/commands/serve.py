"""`pie serve`: a server until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pie_control.errors import ConfigError
from pie_inference.amounts import amount

from ..patience import explaining_slow_start
from ..server_options import add_settings, config_of
from ..terminal import log_to_stderr, write_line

if TYPE_CHECKING:
    from pie_control.config import ServerConfig
    from pie_control.http_server.server import HttpServer
    from pie_inference.protocol import ModelDescription

log = logging.getLogger(__name__)

NAME = "serve"
HELP = "serve models to inferlets until interrupted"
EXAMPLES = """  pie serve                                  the demo model on http://127.0.0.1:8011
  pie serve --model ~/models/llama --port 9000
  pie serve --model demo --model chat=~/models/llama --replicas 2
  pie serve --tenants tenants.toml           clients show tokens of the file (docs/cli.md)
  pie serve --worker tcp://10.0.0.2:8012 --secret-file secret     a `pie worker` of another machine
  PIE_MAX_PAGES=512 pie serve --policy eager"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_settings(parser)
    parser.add_argument(
        "--program",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="program that answers requests in place of the bundled one of this name, for everybody; may be repeated",
    )


def execute(options: argparse.Namespace) -> int:
    """Serves; returns only when a signal ends it."""
    from pie_control.config import JSON, default_hosts
    from pie_control.durable.database import default_state_dir

    from ..interrupts import run_until_signal

    config = config_of(options, hosts=default_hosts(), state=default_state_dir())
    log_to_stderr(logging.INFO, _json_formatter() if config.log_format == JSON else None)
    return run_until_signal(_serve(config, read_programs(options.program)))


def _json_formatter() -> logging.Formatter:
    from pie_control.observation.logs import JsonFormatter

    return JsonFormatter()


def read_programs(given: Sequence[str]) -> dict[str, bytes]:
    """The programs of `--program NAME=FILE`, by name; raises ConfigError, and BadProgram for what is no Python."""
    from pie_control.authoring.check import check_syntax
    from pie_control.gateway.programs import ROUTES

    programs = {}
    for text in given:
        name, _, file = text.partition("=")
        if name not in ROUTES.values() or not file:
            names = ", ".join(sorted(set(ROUTES.values())))
            raise ConfigError(f"--program must be NAME=FILE, where NAME is one of {names}, not {text!r}")
        try:
            programs[name] = Path(file).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(f"--program {text}: cannot read the file: {error.strerror}") from None
        check_syntax(Path(file).expanduser())
    return programs


async def _serve(config: ServerConfig, programs: Mapping[str, bytes]) -> int:
    from pie_control.garbage import collect_at_leisure

    async with open_server(config, programs) as server:
        read_tenants_at_hangup(config, server)
        for line in summary(server.api.models(), server.url, server.open_port):
            write_line(line)
        try:
            await collect_at_leisure(lambda: server.api.is_idle)
        except asyncio.CancelledError as end:
            if end.args == (signal.SIGTERM,):
                await server.drain(config.drain_seconds)
            raise
    return 0


def summary(models: Sequence[ModelDescription], url: str, open_port: int | None = None) -> Iterator[str]:
    """What a server that has started tells. `open_port`: where it listens on each address of the machine."""
    yield f"serving {', '.join(model.name for model in models)} at {url} (API documentation: {url}/docs)"
    for model in models:
        weights = f"{amount(model.weight_bytes, 'B')} of weights, {model.dtype} on {model.device}"
        tokens = f"{model.num_pages * model.page_size:,} tokens"
        room = f"room for {tokens} ({amount(model.num_pages * model.page_bytes, 'B')})"
        yield f"  {model.name}: {weights}; {room}, {model.max_context:,} in one text"
    yield f"  for clients of OpenAI's API: base URL {url}/v1; of Anthropic's: {url}"
    yield f"  dashboard: {url}/; playground: {url}/playground"
    if open_port is not None:
        yield f"  for other machines: http://ADDRESS:{open_port}, by each address of this one"


def read_tenants_at_hangup(config: ServerConfig, server: HttpServer) -> None:
    """SIGHUP reads the file of tenants again; one that is wrong changes nothing."""
    from pie_control.config import find_accounts

    def read() -> None:
        try:
            server.use(find_accounts(config.tenants))
        except ConfigError as error:
            log.error("the tenants stay as they were: %s", error)
        else:
            log.info("the tenants are those of %s from now on", config.tenants)

    if config.tenants:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read)


@contextlib.asynccontextmanager
async def open_server(
    config: ServerConfig, programs: Mapping[str, bytes] = MappingProxyType({})
) -> AsyncIterator[HttpServer]:
    """Starts a server with its HTTP API; closes both at the end. `programs`: see `HttpServer`. Raises ConfigError,
    WorkerUnavailable."""
    from pie_control.http_server.listening import bind
    from pie_control.runtime import build_server

    with bind(config.host, config.port) as listener:
        api = build_server(config)
        starting = asyncio.create_task(api.start())
        try:
            await asyncio.sleep(0)  # starts the worker process, which loads while this one imports
            from pie_control.http_server.server import HttpServer

            server = HttpServer(api, listener, config, programs)
            with explaining_slow_start():
                await starting
            await server.start()
            try:
                yield server
            finally:
                await api.close()  # first, so that connected clients learn how their inferlets ended
                await server.close()
        finally:
            starting.cancel()
            await api.close()
