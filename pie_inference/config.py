"""The worker's configuration: one frozen object, built from the command line. Imports no torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError
from .options import OptionError, WorkerOptions, add_arguments, given_options
from .options.address import AddressError, check_listening_address
from .options.secret import SECRET_VARIABLE, SecretError, check_secret, read_secret


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
class Place:
    """Where a worker meets whom it serves: at the socket `endpoint` of the control process that has started it, or at
    the address `listen`, where it waits for any server that knows the secret."""

    endpoint: str  # fd:NUMBER; empty if it listens
    listen: str | None = None
    secret: str | None = None  # None: whoever reaches the address is served


@dataclass(frozen=True)
class ProcessOptions:
    """The command line of a worker."""

    place: Place
    parent: int | None  # process that the worker must not outlive
    first_gpu: int  # GPUs of this machine that workers before this one take
    config: WorkerConfig


def parse_options(arguments: Sequence[str] | None = None) -> ProcessOptions:
    """Options of `python -m pie_inference.serving`. Raises ConfigError; exits as argparse does."""
    parser = argparse.ArgumentParser(
        "pie_inference.serving", description="Serves one model to a Pie control process.", allow_abbrev=False
    )
    add_place_arguments(parser)
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint, or its id on the hub")
    parser.add_argument("--name", required=True, help="name under which the model is served")
    parser.add_argument("--first-gpu", type=int, default=0, help="GPUs that workers before this one take")
    add_config_arguments(parser)
    given = parser.parse_args(arguments)
    config = read_config(given, given.model, given.name)
    return ProcessOptions(read_place(given), given.parent, given.first_gpu, config)


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that `read_place` reads, and --parent."""
    places = parser.add_mutually_exclusive_group(required=True)
    places.add_argument("--endpoint", default="", help="fd:NUMBER of a socket that the control process has handed over")
    places.add_argument("--listen", help="tcp://ADDRESS:PORT at which servers find the worker")
    parser.add_argument("--secret-file", help=f"file with the secret of the servers (default: ${SECRET_VARIABLE})")
    parser.add_argument("--parent", type=int, help="process id that the worker must not outlive")


def read_place(given: argparse.Namespace) -> Place:
    """Where a worker serves, with the secret, which is taken out of the environment so that no process that the worker
    starts sees it. Raises ConfigError."""
    secret = os.environ.pop(SECRET_VARIABLE, None)
    if given.listen is None:
        return Place(given.endpoint)
    try:
        if given.secret_file is not None:
            secret = read_secret(given.secret_file)
        elif secret is not None:
            check_secret(secret, f"${SECRET_VARIABLE}")
        check_listening_address(given.listen, secret)
    except (SecretError, AddressError) as error:
        raise ConfigError(str(error)) from None
    return Place("", given.listen, secret)


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
