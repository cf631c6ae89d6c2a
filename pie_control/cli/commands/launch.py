"""`pie launch`: an inferlet that runs on after the command has ended."""

from __future__ import annotations

import argparse

from ..blobs import add_blobs, blobs_of
from ..server_options import add_server, client_of
from ..terminal import write_line

NAME = "launch"
HELP = "launch an inferlet on a server and print its id"
EXAMPLES = """  pie launch summarize.py -- --language German
  pie launch hello                            a program that the server has, or an example
  pie launch --model chat hello               on another model of the server than its first one"""


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
    parser.add_argument("--model", default="", metavar="NAME", help="of the server (default: its first one)")
    add_blobs(parser)
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Launches; prints the id."""
    from ..interrupts import run_until_signal

    return run_until_signal(_launch(options))


async def _launch(options: argparse.Namespace) -> int:
    from ..targets import launch

    arguments, blobs = options.program_arguments, blobs_of(options)
    async with client_of(options) as client:
        write_line((await launch(client, options.program, arguments, blobs, options.model, detached=True)).id)
    return 0
