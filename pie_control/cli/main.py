"""The command `pie`. Commands import what they need when they run, so that `pie --help` is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from pie_control.errors import ConfigError, InferletEnded, PieError

from .terminal import prepare_streams, write_line

FAILED = 1
MISUSED = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
LONGEST_USAGE = 8
"""Lines of a usage that is printed above an error."""
CONTEXT = 20
"""Characters that are shown on both sides of one that cannot be sent."""
HOMELESS = "Could not determine home directory."
"""What pathlib says where there is no HOME, or no such user."""
UNKNOWN_HOME = (
    "the home folder for which ~ stands is not known: set HOME, or name the cache folder, the state folder and others "
    "by whole paths (--cache-dir, --state)"
)

OURS = ("pie_", "inferlet_sdk")
MISSING = (
    "this command needs the package {}, which is not installed here: a server needs all that the wheel names, a client "
    "of one (--server URL) few (docs/install.md)"
)

EPILOG = """exit codes: 0 success, 1 the inferlet failed, 2 wrong use or no server, 130 interrupted

`pie demo` shows what this is about; `pie COMMAND --help` shows the options of a command."""


class _Version(argparse.Action):
    """Looks the version up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from pie_control.release import package_version

        write_line(f"pie {package_version()}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Errors come without a usage that is so long, as it has all settings of a server, that it hides them."""

    def print_usage(self, file: Any = None) -> None:
        if self.format_usage().count("\n") <= LONGEST_USAGE:
            super().print_usage(file)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from .commands import all_commands  # takes long enough that Ctrl-C may come meanwhile, which `main` sees

    parser = _Parser(
        prog="pie",
        description="Programmable LLM serving: run small programs (inferlets) beside the model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in all_commands():
        sub = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.HELP,
            epilog="examples:\n" + command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # an option of the inferlet must not be taken for one of ours
        )
        command.add_arguments(sub)
        sub.set_defaults(command=command.NAME, execute=command.execute, refuse=sub.error, known=sub)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of a command line; what follows `--` goes to the inferlet, as `program_arguments`."""
    ours, dashes, theirs = _split(arguments)
    options, unknown = make_parser().parse_known_args(ours)
    if hasattr(options, "program") and hasattr(options, "arguments") and not any(map(_is_option, unknown)):
        options.arguments, unknown = [*options.arguments, *unknown], []  # those after our options, before Python 3.12
    if unknown:
        said, program = " ".join(unknown), getattr(options, "program", None)
        rather = f"options of the inferlet follow `--`: `pie {options.command} {program} -- {said}`"
        hint = rather if program else f"{_meant(unknown[0], options.known)}see `pie {options.command} --help`"
        options.refuse(f"unrecognized arguments: {said}; {hint}")
    if dashes and not hasattr(options, "arguments"):
        raise SystemExit("pie: only `run`, `launch` and `test` take arguments after `--`")
    options.program_arguments = [*getattr(options, "arguments", []), *theirs]
    return options


def _meant(word: str, parser: argparse.ArgumentParser) -> str:
    """What a word that a command does not know may be meant for, and what is said before "see ..."."""
    options = parser._option_string_actions
    if not _is_option(word):
        return f"is it the model? `--model {word}`; " if "--model" in options else ""
    from difflib import get_close_matches

    close = get_close_matches(word.partition("=")[0], options, 1)
    return f"do you mean {close[0]}? " if close else ""


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], bool, Sequence[str]]:
    if "--" not in arguments:
        return arguments, False, []
    at = arguments.index("--")
    return arguments[:at], True, arguments[at + 1 :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        prepare_streams()
        if not (given := sys.argv[1:] if arguments is None else arguments):
            write_line(make_parser().format_help(), sys.stderr)
            return MISUSED
        options = parse(given)
        _check_folder()
        code: int = options.execute(options)
        sys.stdout.flush()
        return code
    except InferletEnded as ended:
        return _complain(ended.message or ended.status, FAILED)
    except PieError as error:
        return _complain(str(error), MISUSED)
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":  # of a terminal, for example
            raise
        place = slice(max(0, error.start - CONTEXT), error.end + CONTEXT)
        return _complain(f"{error.object[place]!a} is no text in UTF-8, so it cannot be sent", MISUSED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(OURS):
            raise
        return _complain(MISSING.format(error.name), MISUSED)
    except OSError as error:  # a full disk, for example
        _drop_output()
        return _complain(f"the system refuses this: {error}", MISUSED)
    except RuntimeError as error:
        if str(error) != HOMELESS:
            raise
        return _complain(UNKNOWN_HOME, MISUSED)


def _check_folder() -> None:
    """Raises ConfigError where nothing could start: torch needs a folder that is there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the folder that you are in was removed: change to another one (cd)") from None


def _drop_output() -> None:
    """Nobody takes our output any more; the interpreter must not complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, code: int) -> int:
    write_line(f"pie: {message}", sys.stderr)
    return code
