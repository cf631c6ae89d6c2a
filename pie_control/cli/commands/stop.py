"""`pie stop`: ends inferlets."""

from __future__ import annotations

import argparse

from ..server_options import DEFAULT_SERVER, add_server, server_of, token_of

NAME = "stop"
HELP = "end inferlets"
EXAMPLES = """  pie stop i7
  pie stop i7 i8"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("inferlets", nargs="+", metavar="ID", help="id of an inferlet, as `pie list` shows it")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Ends the inferlets; nothing happens to those that have ended already."""
    from pie_control.client import SyncClient

    with SyncClient(server_of(options) or DEFAULT_SERVER, token_of(options)) as client:
        for inferlet in options.inferlets:
            client.terminate(inferlet)
    return 0
