"""`pie adapters`: LoRA adapters of a server."""

from __future__ import annotations

import argparse
import json
from typing import Any

from pie_control.errors import BadRequest

from ..server_options import DEFAULT_SERVER, add_server, server_of, token_of
from ..tables import format_table
from ..terminal import write_line

NAME = "adapters"
HELP = "list, load and drop LoRA adapters of a server"
EXAMPLES = """  pie adapters
  pie adapters load poet=poet-v2             a folder inside the server's --adapter-dir
  pie adapters drop poet --model chat"""

COLUMNS = ("NAME", "MODEL", "BYTES", "FOLDER")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("action", nargs="?", choices=("list", "load", "drop"), default="list")
    parser.add_argument(
        "adapters", nargs="*", metavar="NAME[=FOLDER]", help="load: names with their folders on the server; drop: names"
    )
    parser.add_argument("--model", default="", help="the model that they belong to (default: the server's first)")
    parser.add_argument("--json", action="store_true", help="list: print all fields as JSON")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Does it in order; the first that fails is an error."""
    from pie_control.client import SyncClient

    if (options.action == "list") == bool(options.adapters):
        raise BadRequest(f"`pie adapters {options.action}` takes {'no' if options.adapters else 'one or more'} names")
    given = [name.partition("=") for name in options.adapters]
    if any(bool(folder) != (options.action == "load") for _, _, folder in given):
        raise BadRequest("`pie adapters load` takes NAME=FOLDER, `pie adapters drop` takes NAME")
    with SyncClient(server_of(options) or DEFAULT_SERVER, token_of(options)) as client:
        if options.action == "list":
            adapters = client.adapters()
            write_line(json.dumps(adapters, indent=2) if options.json else format_table(COLUMNS, map(_row, adapters)))
        for name, _, folder in given:
            if options.action == "load":
                client.load_adapter(name, folder, options.model)
            else:
                client.drop_adapter(name, options.model)
    return 0


def _row(info: dict[str, Any]) -> tuple[str, ...]:
    return info["name"], info["model"], str(info["bytes"]), info["folder"]
