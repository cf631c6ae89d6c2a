"""Asks the inference package about models, in a separate process, because it loads torch."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from pie_control.errors import PieError
from pie_inference.options import option_fields, to_arguments
from pie_inference.options.lifetime import command_of


def inspect(what: str, options: argparse.Namespace, models: Sequence[str], more: Sequence[str] = ()) -> Any:
    """Runs `python -m pie_inference.inspection` on `models`; returns the JSON that it prints. Raises PieError."""
    from pie_control.config import build_config, find_model
    from pie_control.inference_client.process import worker_environment

    given = {option.name: getattr(options, option.name) for option in option_fields()}
    words = to_arguments(build_config(given, os.environ).worker_options)
    folders = [find_model(model).path for model in models]
    command = [*command_of("pie_inference.inspection"), what, *words, *more, "--", *folders]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=worker_environment(os.environ), check=False
    )
    if done.returncode:
        raise PieError(f"the model could not be inspected (status {done.returncode})")
    return json.loads(done.stdout)


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 thread, 2 threads."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
