"""The worker's configuration: one frozen object, built from the command line. Imports no torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError
from .options import OptionError, WorkerOptions, add_arguments, given_options
from .protocol.secret import SECRET_VARIABLE

ENDPOINT_HELP = "ZeroMQ address that the control process has bound, or fd:NUMBER of a socket that it has handed over"


@dataclass(frozen=True)
class WorkerConfig(WorkerOptions):
    """The model that a worker serves, and the options. Raises ConfigError."""

    model: Path  # folder of a Hugging Face checkpoint, or its id on the hub
    name: str  # under which the model is served
    cache_dir: Path | None = None  # for compiled kernels; None: `default_cache_dir`

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except OptionError as error:
            raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class ProcessOptions:
    """The command line of a worker."""

    endpoint: str  # see ENDPOINT_HELP
    parent: int | None  # process that the worker must not outlive
    config: WorkerConfig
    secret: str | None = None  # shared with the control layer where others can reach the endpoint


def parse_options(arguments: Sequence[str] | None = None) -> ProcessOptions:
    """Options of `python -m pie_inference.serving`, and the secret, which is taken out of the environment so that no
    process that the worker starts sees it. Raises ConfigError; exits as argparse does."""
    parser = argparse.ArgumentParser(
        "pie_inference.serving", description="Serves one model to a Pie control process.", allow_abbrev=False
    )
    parser.add_argument("--endpoint", required=True, help=ENDPOINT_HELP)
    parser.add_argument("--parent", type=int, help="process id that the worker must not outlive")
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint, or its id on the hub")
    parser.add_argument("--name", required=True, help="name under which the model is served")
    add_config_arguments(parser)
    given = parser.parse_args(arguments)
    config = read_config(given, given.model, given.name)
    return ProcessOptions(given.endpoint, given.parent, config, os.environ.pop(SECRET_VARIABLE, None))


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that `read_config` reads."""
    parser.add_argument("--cache-dir", type=Path, help="folder for compiled kernels (default: $XDG_CACHE_HOME/pie)")
    add_arguments(parser)


def read_config(given: argparse.Namespace, model: Path, name: str) -> WorkerConfig:
    """The configuration that a command line gives for a model. Raises ConfigError."""
    try:
        options = given_options(given)
    except OptionError as error:
        raise ConfigError(str(error)) from None
    return WorkerConfig(model, name, given.cache_dir, **options)
