"""`pie demo`: what a server with programs can do, in a minute."""

from __future__ import annotations

import argparse

from ..server_options import add_server
from ..terminal import this_command, write_line
from . import run

NAME = "demo"
HELP = "show in a minute what programs beside a model can do"
EXAMPLES = """  pie demo
  pie run demo -- branches=9                  the same example with other arguments"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_server(parser)
    parser.set_defaults(interactive=False, native=False, pdb=False, result=False, blob=[])
    parser.set_defaults(without=run.OWN_SERVER_SETTINGS)


def execute(options: argparse.Namespace) -> int:
    """Runs the example of this name; tells what to do next."""
    from ..programs import EXAMPLES as FOLDER

    options.program = str(FOLDER / NAME / f"{NAME}.py")
    code = run.execute(options)
    if code == 0:
        write_line(f"\nnext: `{this_command()} new story`")
    return code
