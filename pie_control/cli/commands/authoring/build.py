"""`pie build`: a component of a program that is not in Python."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...terminal import this_command, write_line

NAME = "build"
HELP = "make a component of a WebAssembly module, or of a program in Rust"
EXAMPLES = """  pie build story.wasm                        makes story.component.wasm
  pie run story.component.wasm
  pie build story/                            runs cargo in a folder with Cargo.toml, and does the same"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("program", metavar="FILE|FOLDER", help="a core module, or a folder with Cargo.toml")
    parser.add_argument("-o", "--output", metavar="FILE", help="(default: FILE.component.wasm, beside the module)")


def execute(options: argparse.Namespace) -> int:
    """Writes the component; tells where it is."""
    from pie_control.authoring.build import build

    made = build(Path(options.program).expanduser(), Path(options.output) if options.output else None)
    write_line(f"{made} is ready: try `{this_command()} run {made}`")
    return 0
