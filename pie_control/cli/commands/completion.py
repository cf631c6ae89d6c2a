"""`pie completion`: what a shell needs to complete command lines of `pie`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from ..terminal import write

NAME = "completion"
HELP = "print a script by which a shell completes commands and options of pie"
EXAMPLES = """  pie completion bash > ~/.local/share/bash-completion/completions/pie
  source <(pie completion zsh)               in ~/.zshrc, after compinit"""

SHELLS = ("bash", "zsh", "tcsh")
FILES = re.compile("FILE|FOLDER|MODEL|PATH")
"""What names of arguments say that can be a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def execute(options: argparse.Namespace) -> int:
    """Prints the script."""
    import shtab

    from ..main import make_parser

    parser = make_parser()
    for action in _actions(parser):
        if FILES.search(str(action.metavar)):
            vars(action)["complete"] = shtab.FILE  # where shtab looks
    write(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
