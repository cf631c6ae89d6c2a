"""`pie state`: what survives a server."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...tables import format_table, moment
from ...terminal import write_line

if TYPE_CHECKING:
    from pie_control.durable.accounts.summary import Summary

NAME = "state"
HELP = "tell, copy or restore what survives the server of this machine"
EXAMPLES = """  pie state
  pie state backup today.sqlite3             also while the server runs
  pie state backup today.sqlite3 --state /var/lib/pie
  pie state restore today.sqlite3            while no server runs"""
COLUMNS = ("TABLE", "ROWS", "OLDEST")
NOT_KEPT = (
    "; what was there cannot be read: keys that were revoked since the copy are valid again, and those that were made "
    "since are gone (`pie keys list`), as is what was used and audited"
)
DAY = 86400
MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.set_defaults(file=None, copy=None)
    _add_show(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    _add_show(actions.add_parser("show", help="tell what there is (the default)", allow_abbrev=False), again=True)
    backup = actions.add_parser("backup", help="write all of it into a new file", allow_abbrev=False)
    backup.add_argument("file", metavar="FILE", help="to be made; as state.sqlite3 in an empty folder it is a state")
    add_state(backup, argparse.SUPPRESS)
    restore = actions.add_parser("restore", help="put such a file in place of what there is", allow_abbrev=False)
    restore.add_argument("copy", metavar="FILE", help="that `backup` has written; it is checked first")
    add_state(restore, argparse.SUPPRESS)


def _add_show(parser: argparse.ArgumentParser, again: bool = False) -> None:
    default = argparse.SUPPRESS if again else None
    parser.add_argument("--json", action="store_true", default=default, help="print it as JSON")
    add_state(parser, default)


def add_state(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Adds `--state`."""
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        default=default,
        help="of the server (default: $PIE_STATE, $XDG_STATE_HOME/pie or ~/.local/state/pie)",
    )


def execute(options: argparse.Namespace) -> int:
    """Tells what there is; or writes a copy or puts one in place, and tells where it is."""
    from pie_control.durable.accounts.summary import summarize
    from pie_control.durable.database import back_up, put_back, state_folder

    folder = state_folder(options.state)
    if options.file is not None:
        file = Path(options.file).expanduser()
        back_up(folder, file)
        write_line(f"the state is in {file}")
        return 0
    if options.copy is not None:
        kept = put_back(folder, Path(options.copy).expanduser())
        write_line(f"the state in {folder} is that of {options.copy}{'' if kept else NOT_KEPT}")
        return 0
    summary = summarize(folder)
    write_line(json.dumps(asdict(summary), indent=2) if options.json else _told(summary))
    return 0


def _told(summary: Summary) -> str:
    sizes = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in summary.sizes.items())
    user = "no server uses it" if summary.server is None else f"the server with process {summary.server} uses it"
    lines = [f"{summary.file}: {user}", f"files: {sizes}; schema {summary.schema}"]
    for what, kind in (("inferlets that have ended", "state"), ("stored responses of a tenant", "response")):
        if (seconds := summary.bounds.get(f"{kind}_seconds")) is not None:
            most = summary.bounds[f"{kind}_bytes"] / MIB
            lines.append(f"kept: {what} for {seconds / DAY:g} days, {most:,.0f} MiB at most")
    rows = [(one.name, f"{one.rows:,}", moment(one.oldest) if one.oldest else "") for one in summary.tables]
    return "\n".join([*lines, "", format_table(COLUMNS, rows)])
