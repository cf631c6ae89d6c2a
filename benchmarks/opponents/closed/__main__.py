"""`python -m benchmarks.opponents.closed`: serves completions of a model on the loopback until it is interrupted. It
takes the settings of `pie serve` that concern a worker, and starts the worker as `pie serve` does."""

from __future__ import annotations

import argparse
import logging
import sys

from pie_control.cli.interrupts import run_until_signal
from pie_control.cli.server_options import add_settings, config_of
from pie_control.cli.terminal import log_to_stderr, write_line
from pie_control.config import ServerConfig
from pie_control.errors import ConfigError, WorkerUnavailable
from pie_control.garbage import collect_at_leisure
from pie_control.runtime import start_worker
from pie_inference.options import option_fields

from .engine import Engine
from .http import serve
from .server import CompletionServer

SHOWN = ("model", "worker", "port", "cache_dir", *(option.name for option in option_fields()))


def main() -> int:
    """Reads the options, and serves; returns the exit status."""
    parser = argparse.ArgumentParser("python -m benchmarks.opponents.closed", description=__doc__, allow_abbrev=False)
    add_settings(parser, shown=SHOWN)
    log_to_stderr(logging.INFO)
    try:
        return run_until_signal(_serve(config_of(parser.parse_args())))
    except (ConfigError, WorkerUnavailable, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _serve(config: ServerConfig) -> int:
    if len(config.models) != 1:
        raise ConfigError("this server has one model: name one")
    client = start_worker(config, config.models[0])
    try:
        ready = await client.start()
        engine = Engine(client, ready.models[0])
        server = await serve(CompletionServer(engine).handle, config.port)
        async with server:
            port = server.sockets[0].getsockname()[1]
            write_line(f"serving {engine.description.name} at http://127.0.0.1:{port}")
            await collect_at_leisure(lambda: engine.is_idle)
    finally:
        await client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
