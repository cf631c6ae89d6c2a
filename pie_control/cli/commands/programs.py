"""`pie programs`: programs of a server."""

from __future__ import annotations

import argparse
from typing import Any

from ..server_options import add_server, blocking_client
from ..tables import listed, moment
from ..terminal import write_line

NAME = "programs"
HELP = "list the programs of a server"
EXAMPLES = """  pie programs
  pie programs --json"""

COLUMNS = ("PROGRAM", "NAME", "FILE", "KIND", "BYTES", "UPLOADED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the list."""
    with blocking_client(options) as client:
        programs = client.programs()
    write_line(listed(options, COLUMNS, programs, _row))
    return 0


def _row(info: dict[str, Any]) -> tuple[str, ...]:
    names = ", ".join(info["names"])
    return info["program"][:12], names, info["file"], info["kind"], str(info["size"]), moment(info["uploaded"])
