"""`pie logs`: what an inferlet wrote to stdout, stderr and its log."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..server_options import DEFAULT_SERVER, add_server, server_of, token_of
from ..terminal import write

if TYPE_CHECKING:
    from pie_control.client import Client
    from pie_control.inferlets.events import LogLine

NAME = "logs"
HELP = "print the log of an inferlet"
EXAMPLES = """  pie logs i7
  pie logs -f i7                              new lines too, until it ends"""

POLL_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("inferlet", metavar="ID", help="id of the inferlet, as `pie list` shows it")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the inferlet ends")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the log."""
    from pie_control.client import Client

    from ..interrupts import run_until_signal

    client = Client(server_of(options) or DEFAULT_SERVER, token_of(options))
    return run_until_signal(_print_log(client, options.inferlet, options.follow))


async def _print_log(client: Client, id: str, follow: bool) -> int:
    seen: Sequence[LogLine] = ()
    async with client:
        while True:
            # Asks before it reads the lines: an inferlet that ends in between would lose its last lines.
            ended = (await client.inferlet(id))["ended"] is not None
            lines = await client.logs(id)
            for line in _new_lines(seen, lines):
                write(line.text + "\n")
            if ended or not follow:
                return 0
            seen = lines
            await asyncio.sleep(POLL_SECONDS)


def _new_lines(seen: Sequence[LogLine], lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """The lines after the last one seen; all lines if the server has dropped that one."""
    if seen and seen[-1] in lines:
        return lines[len(lines) - list(reversed(lines)).index(seen[-1]) :]
    return lines
