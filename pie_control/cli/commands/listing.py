"""`pie list`: inferlets of a server."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ..server_options import add_server, blocking_client
from ..tables import listed, waiting
from ..terminal import write_line

NAME = "list"
HELP = "list running and recently ended inferlets"
EXAMPLES = """  pie list
  pie list --json"""

COLUMNS = ("ID", "STATUS", "PROGRAM", "AGE", "CPU", "PAGES", "HOST", "PARENT", "WAITS FOR")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the list, and on stderr which workers and hosts do not serve."""
    with blocking_client(options) as client:
        inferlets = client.inferlets()
        outages = client.statistics().get("outages", ())  # a key that may not `admin` is told of none
    write_line(listed(options, COLUMNS, inferlets, _row))
    for line in outages:
        write_line(line, sys.stderr)
    return 0


def _row(info: dict[str, Any]) -> tuple[str, ...]:
    age = (info["ended"] or time.time()) - info["created"]
    cells = (
        info["id"],
        info["status"],
        info["program_name"],
        f"{age:.1f} s",
        f"{info['cpu_seconds']:.3f} s",
        info["pages"],
        info["host"],
        info.get("parent") or "",
        waiting(info),
    )
    return tuple(map(str, cells))
