"""The commands of `pie`: each module of this package, and of those in it, is one, and is found by being here."""

from __future__ import annotations

import argparse
import pkgutil
from importlib import import_module
from typing import Protocol, cast


class Subcommand(Protocol):
    """What a module of this package has."""

    NAME: str
    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""

    def execute(self, options: argparse.Namespace) -> int:
        """Runs the command and returns the exit code."""


def all_commands() -> tuple[Subcommand, ...]:
    """The commands, sorted by name."""
    found = pkgutil.walk_packages(__path__, f"{__name__}.")
    modules = (import_module(module.name) for module in found if not module.ispkg)
    return tuple(sorted((cast("Subcommand", module) for module in modules), key=lambda command: command.NAME))
