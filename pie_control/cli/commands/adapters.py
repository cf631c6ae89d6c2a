"""`pie adapters`: LoRA adapters of a server."""

from __future__ import annotations

import argparse
from typing import Any

from pie_control.errors import BadRequest

from ..server_options import add_server, blocking_client
from ..tables import listed
from ..terminal import write_line

NAME = "adapters"
HELP = "list, load and drop LoRA adapters of a server"
EXAMPLES = """  pie adapters
  pie adapters load poet=poet-v2             a folder inside the server's --adapter-dir
  pie adapters drop poet --model chat"""

COLUMNS = ("NAME", "MODEL", "BYTES", "FOLDER")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    _add_list(parser)
    actions = parser.add_subparsers(metavar="ACTION", dest="action")
    _add_list(actions.add_parser("list", help="list all (the default)", allow_abbrev=False), again=True)
    load = actions.add_parser("load", help="load adapters, one after the other", allow_abbrev=False)
    load.add_argument("adapters", nargs="+", metavar="NAME=FOLDER", help="a name, and a folder inside --adapter-dir")
    drop = actions.add_parser("drop", help="drop adapters", allow_abbrev=False)
    drop.add_argument("adapters", nargs="+", metavar="NAME", help="of one that is loaded")
    for action in (load, drop):
        action.add_argument("--model", default="", help="the model that they belong to (default: the server's first)")
        add_server(action, argparse.SUPPRESS)


def _add_list(parser: argparse.ArgumentParser, again: bool = False) -> None:
    default = argparse.SUPPRESS if again else None
    parser.add_argument("--json", action="store_true", default=default, help="list: print all fields as JSON")
    add_server(parser, default)


def execute(options: argparse.Namespace) -> int:
    """Does it in order; the first that fails is an error."""
    given = [name.partition("=") for name in getattr(options, "adapters", ())]
    if any(bool(folder) != (options.action == "load") for _, _, folder in given):
        raise BadRequest("`pie adapters load` takes NAME=FOLDER, `pie adapters drop` takes NAME")
    with blocking_client(options) as client:
        for name, _, folder in given:
            if options.action == "load":
                client.load_adapter(name, folder, options.model)
            else:
                client.drop_adapter(name, options.model)
        if not given:
            write_line(listed(options, COLUMNS, client.adapters(), _row))
    return 0


def _row(info: dict[str, Any]) -> tuple[str, ...]:
    return info["name"], info["model"], str(info["bytes"]), info["folder"]
