"""`pie test`: the tests of an inferlet."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pie_control.errors import ConfigError, UnknownName

from ...interrupts import interrupted_by_sigterm
from ...server_options import add_settings, config_of
from ..run import OWN_SERVER_SETTINGS

NAME = "test"
HELP = "run the tests of an inferlet with pytest, outside of the sandbox: for trusted code only"
EXAMPLES = """  pie test                                    test_*.py in this folder, on the demo model
  pie test --fake story.py                    test_story.py beside it; tokens mean nothing, and the start takes no time
  pie test --pdb                              pdb at the line where a program or a test fails
  pie test story/ -- -k bees                  options of pytest after --"""

FAILED, MISUSED = 1, 2
ENDS_WITH = {0: 0, 1: FAILED}
"""Exit codes by those of pytest; MISUSED for all others, such as 5: there are no tests."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("paths", nargs="*", metavar="FILE|FOLDER", help="tests, or inferlets whose tests are meant")
    parser.add_argument("--fake", action="store_true", help="a model without weights, instead of the demo model")
    parser.add_argument("--pdb", action="store_true", help="open pdb at the line where a program or a test fails")
    parser.add_argument("--sandbox", action="store_true", help="programs run in the sandbox, as on a server")
    parser.set_defaults(arguments=[])
    add_settings(parser, without=OWN_SERVER_SETTINGS)


def execute(options: argparse.Namespace) -> int:
    """Runs the tests; returns 0 if all pass, 1 if one fails, 2 if there are none."""
    from pie_control.authoring.testing import run_tests

    if options.pdb and options.sandbox:
        raise ConfigError("--pdb cannot look into the sandbox: leave --sandbox out")
    paths = list(_tests_of(options.paths or ["."]))
    arguments = [*paths, *options.program_arguments]
    config = config_of(options)
    with interrupted_by_sigterm():
        code = run_tests(arguments, config, fake=options.fake, sandbox=options.sandbox, debug=options.pdb)
    return ENDS_WITH.get(code, MISUSED)


def _tests_of(given: list[str]) -> Iterator[str]:
    from pie_control.client.programs.packages import ENTRIES

    for text in given:
        path = Path(text)
        if path.suffix == ".py" and not path.name.startswith("test_"):
            folder = path.resolve().parent.name
            names = [path.name, f"{folder}.py"] if path.name in ENTRIES else [path.name]
            beside = [path.parent / f"test_{name}" for name in names]
            found = [one for one in beside if one.is_file()]
            if not found:
                raise UnknownName(f"{path} has no tests: they would be in {' or '.join(map(str, beside))}")
            path = found[0]
        if not path.exists() and "::" not in text:
            raise UnknownName(f"there is no file or folder {text}")
        yield str(path)
