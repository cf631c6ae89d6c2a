"""`pie launch`: an inferlet that runs on after the command has ended."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..blobs import add_blobs, blobs_of
from ..server_options import add_server, client_of
from ..terminal import write_line

if TYPE_CHECKING:
    from pie_control.client import Client

NAME = "launch"
HELP = "launch an inferlet on a server and print its id"
EXAMPLES = """  pie launch summarize.py -- --language German
  pie launch hello                            a program that the server has, or an example"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "program",
        metavar="FILE|FOLDER|NAME",
        help="a Python file, a folder or zip with main.py, a component, or the name of a program",
    )
    parser.add_argument(
        "arguments", nargs="*", default=[], metavar="ARGUMENT", help="arguments of the inferlet; options after --"
    )
    add_blobs(parser)
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Launches; prints the id."""
    from ..interrupts import run_until_signal

    return run_until_signal(_launch(client_of(options), options.program, options.program_arguments, blobs_of(options)))


async def _launch(client: Client, program: str, arguments: list[str], blobs: Mapping[str, Path]) -> int:
    from ..targets import stored

    async with client:
        reference = await stored(client, program)
        write_line((await client.launch(reference, *arguments, blobs=blobs, detached=True)).id)
    return 0
