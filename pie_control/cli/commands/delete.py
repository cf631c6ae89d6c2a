"""`pie delete`: deletes programs."""

from __future__ import annotations

import argparse

from ..server_options import add_server, blocking_client

NAME = "delete"
HELP = "delete programs from a server; their inferlets go on"
EXAMPLES = """  pie delete story
  pie delete 5501be2741b3 story"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "programs",
        nargs="+",
        metavar="PROGRAM",
        help="a name, or the beginning of a hash (8 characters at least), as `pie programs` shows them",
    )
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Deletes the programs in order; the first that does not exist is an error."""
    with blocking_client(options) as client:
        for program in options.programs:
            client.remove_program(program)
    return 0
