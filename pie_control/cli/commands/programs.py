"""`pie programs`: programs of a server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..server_options import add_server, client_of
from ..tables import add_json, moment, write_list

NAME = "programs"
HELP = "list the programs of a server"
EXAMPLES = """  pie programs
  pie programs --json"""

COLUMNS = ("PROGRAM", "NAME", "FILE", "KIND", "BYTES", "UPLOADED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_json(parser)
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the list."""
    with client_of(options) as client:
        programs = client.programs()
    write_list(options, COLUMNS, programs, _row)
    return 0


def _row(info: Mapping[str, Any]) -> tuple[str, ...]:
    names = ", ".join(info["names"])
    return info["program"][:12], names, info["file"], info["kind"], str(info["size"]), moment(info["uploaded"])
