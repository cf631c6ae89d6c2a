"""`pie stop`: ends inferlets."""

from __future__ import annotations

import argparse

from pie_control.errors import ConfigError

from ..server_options import add_server, blocking_client
from ..terminal import write_line

NAME = "stop"
HELP = "end inferlets"
EXAMPLES = """  pie stop i7
  pie stop i7 i8
  pie stop --all                              all of yours that run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("inferlets", nargs="*", metavar="ID", help="id of an inferlet, as `pie list` shows it")
    parser.add_argument("--all", action="store_true", help="all inferlets that run; prints their ids")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Ends the inferlets; nothing happens to those that have ended already."""
    if bool(options.inferlets) == options.all:
        raise ConfigError("name the inferlets that shall end, as `pie list` shows them, or all by --all")
    with blocking_client(options) as client:
        for inferlet in options.inferlets:
            client.terminate(inferlet)
        for info in client.inferlets() if options.all else ():
            if info["ended"] is None:
                client.terminate(info["id"])
                write_line(info["id"])
    return 0
