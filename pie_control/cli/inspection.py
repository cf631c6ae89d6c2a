"""What `pie models` and `pie bench-model` ask of the inference package, in a process of its own: it loads torch."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pie_control.errors import PieError
from pie_inference.options import add_arguments, option_fields, to_arguments

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def add_model_settings(parser: argparse.ArgumentParser) -> None:
    """The options that say how a model is served."""
    add_arguments(parser)


def inspect(what: str, options: argparse.Namespace, models: Sequence[str], more: Sequence[str] = ()) -> Any:
    """What `python -m pie_inference.inspection` prints of `models`, as JSON objects. Raises PieError."""
    from pie_control.config import build_config, find_model
    from pie_control.inference_client.process import worker_environment

    given = {option.name: getattr(options, option.name) for option in option_fields()}
    words = to_arguments(build_config(given, os.environ).worker)
    folders = [find_model(model).path for model in models]
    command = [sys.executable, "-m", "pie_inference.inspection", what, *words, *more, "--", *folders]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=worker_environment(os.environ), check=False
    )
    if done.returncode:
        raise PieError(f"the model could not be inspected (status {done.returncode})")
    return json.loads(done.stdout)


def amount(number: float, unit: str = "") -> str:
    """With three digits and a prefix: 1.24 GB."""
    for size, prefix in UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def count(number: int, noun: str) -> str:
    """1 thread, 2 threads."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
