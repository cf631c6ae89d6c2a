"""`pie new`: the beginning of an inferlet."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...terminal import this_command, write_line

LANGUAGES = ("python", "rust")
NAME = "new"
HELP = "make a folder with an inferlet, its test and a README"
EXAMPLES = """  pie new story                               makes story/main.py, story/test_story.py and story/README.md
  pie run story/ -- --topic cats
  pie test story/
  pie new --lang rust tale                    makes tale/Cargo.toml, tale/src/lib.rs and tale/README.md"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("name", metavar="NAME", help="of the inferlet and its folder: letters, digits and underscores")
    parser.add_argument("--lang", choices=LANGUAGES, default="python", help="(default: python)")


def execute(options: argparse.Namespace) -> int:
    """Writes the files; tells what to do next."""
    from pie_control.authoring.new import make

    folder = make(options.name, Path.cwd(), options.lang).name
    commands = ("run", "test", "check") if options.lang == "python" else ("run", "build")
    tries = ", ".join(f"`{this_command()} {command} {folder}/`" for command in commands)
    write_line(f"{folder}/ is ready: try {tries}")
    return 0
