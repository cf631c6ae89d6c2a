"""`pie completion`: what a shell needs to complete command lines of `pie`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from ..terminal import write

NAME = "completion"
HELP = "print a script by which a shell completes commands and options of pie"
EXAMPLES = """  pie completion bash > ~/.local/share/bash-completion/completions/pie
  source <(pie completion zsh)               in ~/.zshrc, after compinit
  pie completion fish > ~/.config/fish/completions/pie.fish"""

FISH = "fish"
SHELLS = ("bash", "zsh", "tcsh", FISH)
FILES = re.compile("FILE|FOLDER|MODEL|PATH")
"""What names of arguments say that can be a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def execute(options: argparse.Namespace) -> int:
    """Prints the script."""
    from ..main import make_parser

    parser = make_parser()
    if options.shell == FISH:
        write("".join(f"complete -c pie {line}\n" for line in ("-f", *_fish(parser, ()))))
        return 0
    import shtab  # which knows all but fish

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


def _fish(parser: argparse.ArgumentParser, commands: Sequence[str]) -> Iterator[str]:
    """Arguments of fish's `complete` for a parser, behind these commands, and for those below it."""
    here = "; and ".join(f"__fish_seen_subcommand_from {command}" for command in commands)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            names = " ".join(action.choices)
            first = f"not __fish_seen_subcommand_from {names}"
            condition = _quoted(f"{here}; and {first}" if here else first)
            for each in action._choices_actions:
                yield f"-n {condition} -a {_quoted(each.dest)} -d {_quoted(each.help or '')}"
            for name, below in action.choices.items():
                yield from _fish(below, (*commands, name))
        elif words := " ".join((*_names(action), *_values(action))):
            condition = f"-n {_quoted(here)} " if here else ""
            told = "" if action.help in (None, argparse.SUPPRESS) else parser._get_formatter()._expand_help(action)
            yield f"{condition}{words}{f' -d {_quoted(told)}' if told else ''}"


def _names(action: argparse.Action) -> Iterator[str]:
    for option in action.option_strings:
        yield f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"


def _values(action: argparse.Action) -> Iterator[str]:
    """What can be given to it: one of its choices, a file, anything, or nothing."""
    if action.choices:
        yield f"-x -a {_quoted(' '.join(map(str, action.choices)))}"
    elif action.nargs != 0 and FILES.search(str(action.metavar)):
        yield "-r -F" if action.option_strings else "-F"
    elif action.option_strings and action.nargs != 0:
        yield "-x"


def _quoted(text: str) -> str:
    """A word for fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
