"""`pie models`: what a server serves."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .server_options import DEFAULT_SERVER, add_server, server_of
from .tables import format_table

HELP = "list the models of a server"
EXAMPLES = """  pie models
  pie models --json"""

COLUMNS = ("NAME", "ARCHITECTURE", "DTYPE", "DEVICE", "CONTEXT", "PAGES", "TRAITS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="print everything that is known, as JSON")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Prints the list."""
    from pie_control.client import SyncClient

    with SyncClient(server_of(options) or DEFAULT_SERVER) as client:
        models = client.models()
    print(json.dumps(models, indent=2) if options.json else format_table(COLUMNS, map(_row, models)))
    return 0


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    pages = f"{model['num_pages']} x {model['page_size']}"
    names = ("name", "architecture", "dtype", "device", "max_context")
    return (*(str(model[name]) for name in names), pages, ",".join(model["traits"]))
