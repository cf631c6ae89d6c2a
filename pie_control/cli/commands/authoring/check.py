"""`pie check`: mistakes that can be seen before a launch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ...terminal import write_line

NAME = "check"
HELP = "find wrong uses of the API in programs, without running them"
EXAMPLES = """  pie check story.py
  pie check --json story/"""

FOUND = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("programs", nargs="+", metavar="FILE|FOLDER", help="a Python file, or a folder with main.py")
    parser.add_argument("--json", action="store_true", help="one JSON list of all findings")


def execute(options: argparse.Namespace) -> int:
    """Prints findings; returns 1 if there are any."""
    from pie_control.authoring.check import check

    found = [each for program in options.programs for each in check(Path(program))]
    if options.json:
        write_line(json.dumps([each.as_json() for each in found], indent=2))
    else:
        for each in found:
            write_line(str(each))
    return FOUND if found else 0
