"""`--blob NAME=FILE`: files that an inferlet gets beside its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from pie_control.errors import ConfigError


def add_blobs(parser: argparse.ArgumentParser) -> None:
    """Declares the option."""
    parser.add_argument(
        "--blob",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a file, such as an image, that the inferlet opens by this name; may be given several times",
    )


def blobs_of(options: argparse.Namespace) -> Mapping[str, Path]:
    """The files by name. Raises ConfigError."""
    found: dict[str, Path] = {}
    for given in options.blob:
        name, equals, file = given.partition("=")
        if not equals or not name or not file:
            raise ConfigError(f"--blob {given}: give a name and a file, as in --blob photo=cat.png")
        if not Path(file).is_file():
            raise ConfigError(f"--blob {given}: there is no file {file}")
        found[name] = Path(file)
    return found
