"""`pie upload`: programs that a server keeps by name."""

from __future__ import annotations

import argparse
from pathlib import Path

from pie_control.errors import UnknownName

from ..server_options import add_server, blocking_client
from ..tables import moment
from ..terminal import write_line

NAME = "upload"
HELP = "give a program to a server, under a name by which it is launched"
EXAMPLES = """  pie upload story.py                         its name is story
  pie upload story/ --name tale
  pie launch tale"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "file",
        metavar="FILE|FOLDER",
        help="a Python file, a folder or zip with main.py, a component, a folder with Cargo.toml",
    )
    parser.add_argument("--name", help="(default: that of the file without its suffix, or of the folder)")
    add_server(parser)


def execute(options: argparse.Namespace) -> int:
    """Uploads; prints what the program is called, and which other one had the name."""
    from pie_control.client.programs.packages import name_of

    from ..programs import built

    path = Path(options.file).expanduser()
    name = options.name or name_of(path)
    if not path.exists():
        raise UnknownName(f"there is no file or folder {options.file}")
    with blocking_client(options) as client:
        before = {each["program"]: each for each in client.programs()}
        stored = client.store(built(path), name)
    write_line(f"{name}: {stored['program'][:12]}")
    if replaced := before.get(stored.get("replaced", "")):
        when, hash_ = moment(replaced["uploaded"]), replaced["program"][:12]
        write_line(f"{name} was another program until now, uploaded on {when}: `pie run {hash_}` still runs that")
    return 0
