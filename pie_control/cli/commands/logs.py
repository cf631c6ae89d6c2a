"""`pie logs`: what an inferlet wrote to stdout, stderr and its log."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pie_control.errors import UnknownName

from ..server_options import add_server, client_of
from ..tables import standing
from ..terminal import write, write_line

if TYPE_CHECKING:
    from pie_control.client import Client
    from pie_control.inferlets.events import LogLine

NAME = "logs"
HELP = "print the log of an inferlet"
EXAMPLES = """  pie logs                                    of the inferlet that was launched last
  pie logs i7
  pie logs -f i7                              new lines too, until it ends
  pie logs --stack i7                         what it waits for, and where its tasks are"""

POLL_SECONDS = 0.2
ANSWER_SECONDS = 2.0
"""A program that waits says within this time where its tasks are."""

NO_LINES = "pie: {0} has written no log; `pie attach {0}` prints its messages"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "inferlet", nargs="?", metavar="ID", help="id of the inferlet, as `pie list` shows it (default: the last one)"
    )
    parser.add_argument("--stack", action="store_true", help="print what it waits for, and where its tasks are")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object of one line")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the inferlet ends")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the log."""
    from ..interrupts import run_until_signal

    return run_until_signal(_print(client_of(options), options))


async def _print(client: Client, options: argparse.Namespace) -> int:
    async with client:
        id = options.inferlet or await last_inferlet(client)
        return await (
            _print_stack(client, id) if options.stack else _print_log(client, id, options.follow, as_json=options.json)
        )


async def last_inferlet(client: Client) -> str:
    """The id of the inferlet that was launched last."""
    if not (known := await client.inferlets()):
        raise UnknownName("no inferlet was launched lately: `pie list` shows those whose log there is")
    newest: str = max(known, key=lambda info: info["created"])["id"]
    return newest


async def _print_log(client: Client, id: str, follow: bool, *, as_json: bool) -> int:
    seen = 0
    while True:
        # Asks before it reads the lines: an inferlet that ends in between would lose its last lines.
        ended = (await client.inferlet(id))["ended"] is not None
        lines = await client.logs(id, after=seen)
        for line in lines:
            fields = {"time": line.time, "stream": line.stream, "text": line.text}
            write((json.dumps(fields) if as_json else line.text) + "\n")
        if ended or not follow:
            if not (lines or seen):
                write_line(NO_LINES.format(id), sys.stderr)
            return 0
        seen = _last_number(lines, seen)
        await asyncio.sleep(POLL_SECONDS)


async def _print_stack(client: Client, id: str) -> int:
    from pie_control.inferlets.events import WHERE

    before = _last_number(await client.logs(id))
    info = await client.inferlet(id, stack=True)
    write_line(standing(info))
    until = time.monotonic() + ANSWER_SECONDS
    while info["waits_for"] and time.monotonic() < until:
        for line in await client.logs(id, after=before):
            if line.text.startswith(WHERE):
                write_line(line.text.partition("\n")[2])
                return 0
        await asyncio.sleep(ANSWER_SECONDS / 40)
    return 0


def _last_number(lines: Sequence[LogLine], before: int = 0) -> int:
    return lines[-1].number if lines else before
