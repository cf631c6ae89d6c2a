"""`pie attach`: the messages of an inferlet that runs already."""

from __future__ import annotations

import argparse
import asyncio
import sys

from ...server_options import add_server, client_of
from ...terminal import write_line
from ..logs import last_inferlet
from ..run import Printer, follow

NAME = "attach"
HELP = "print the messages of an inferlet that runs, those that nobody has read first"
EXAMPLES = """  pie attach                                  to the inferlet that was launched last
  pie attach -i i7                            lines of stdin are sent to it

Ctrl-C ends the command; the inferlet goes on. Its messages go to one client at a time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "inferlet", nargs="?", metavar="ID", help="id of the inferlet, as `pie list` shows it (default: the last one)"
    )
    parser.add_argument("-i", "--interactive", action="store_true", help="send the lines of stdin to the inferlet")
    parser.add_argument(
        "--result", action="store_true", help="print the result alone to stdout, as JSON, and messages to stderr"
    )
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints what the inferlet sends and logs until it ends; returns 0 if it finished, else 1."""
    from ...interrupts import run_until_signal

    return run_until_signal(_attach(options))


async def _attach(options: argparse.Namespace) -> int:
    async with client_of(options) as client:
        id = options.inferlet or await last_inferlet(client)
        running = await client.attach(id, logs=True)
        printer = Printer(options.result)
        try:
            code = await follow(running, printer, options.interactive)
            if printer.is_silent:
                write_line(f"pie: {id} has finished, and has nothing that was not read before", sys.stderr)
            return code
        except asyncio.CancelledError:
            write_line(f"pie: {id} goes on: `pie attach {id}` comes back to it, `pie stop {id}` ends it", sys.stderr)
            raise
