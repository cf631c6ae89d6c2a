"""`pie state`: what survives a server."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...terminal import write_line

NAME = "state"
HELP = "copy what survives the server of this machine"
EXAMPLES = """  pie state backup today.sqlite3             also while the server runs
  pie state backup today.sqlite3 --state /var/lib/pie"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    backup = actions.add_parser("backup", help="write all of it into a new file", allow_abbrev=False)
    backup.add_argument("file", metavar="FILE", help="to be made; as state.sqlite3 in an empty folder it is a state")
    add_state(backup)


def add_state(parser: argparse.ArgumentParser) -> None:
    """Adds `--state`."""
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        help="of the server (default: $PIE_STATE, $XDG_STATE_HOME/pie or ~/.local/state/pie)",
    )


def execute(options: argparse.Namespace) -> int:
    """Writes the copy; tells where it is."""
    from pie_control.durable.database import back_up, state_folder

    file = Path(options.file).expanduser()
    back_up(state_folder(options.state), file)
    write_line(f"the state is in {file}")
    return 0
