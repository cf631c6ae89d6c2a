"""`python -m benchmarks NAME --json FILE [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pie_control.inference_client.process import worker_environment

from . import report

BENCHMARKS = ("launch", "api_calls", "tpot", "idle", "scheduler", "cpu_model", "cpu_kernels", "attention", "loading")
OPTIONS = ("parts", "concurrent", "rounds", "baseline")
"""Of `cpu_model` only: they replace what its plan says."""
MOST_LOAD = 0.5
"""Runnable processes of others; above it, times say more of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark, prints its rows as a table and writes them as JSON."""
    options = parse(arguments)
    machine = report.machine()
    if machine.load > MOST_LOAD:
        print(f"the machine is not idle (load {machine.load}): times will be too long", file=sys.stderr)
    changes = {name: getattr(options, name) for name in OPTIONS if getattr(options, name)}
    rows = run(options.name, options.quick, changes)
    made = report.make_report(options.name, "quick" if options.quick else "full", machine, rows)
    print(report.as_table(made.rows))
    if options.json is not None:
        made.write(options.json)
    return 0


def run(name: str, quick: bool, changes: Mapping[str, Any]) -> list[Any]:
    """The rows of a benchmark, as dataclasses. `changes` to its plan."""
    module = importlib.import_module(f"benchmarks.{name}")
    plan = dataclasses.replace(module.QUICK if quick else module.FULL, **changes)
    rows: list[Any] = asyncio.run(module.run(plan))
    assert all(dataclasses.is_dataclass(row) for row in rows)
    return rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits where it makes no sense."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.name != "cpu_model" and any(getattr(options, name) for name in OPTIONS):
        parser.error(f"{', '.join('--' + name for name in OPTIONS)} are of cpu_model only")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measures Pie; docs/benchmarks.md has more.")
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go, with machine and commit")
    parser.add_argument("--quick", action="store_true", help="fewer rows and samples, in less than a minute")
    parser.add_argument("--parts", type=_parts, metavar="A,B", help="cpu_model: only these parts (docs/benchmarks.md)")
    parser.add_argument("--concurrent", type=_numbers, metavar="N,M", help="cpu_model: only so many sequences at once")
    parser.add_argument("--rounds", type=int, metavar="N", help="cpu_model: turns of each side")
    parser.add_argument("--baseline", type=Path, metavar="FOLDER", help="cpu_model: a checkout of the commit to beat")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _compute_as_a_worker_does() -> None:
    """Starts anew in a worker's environment, for the closed loop: malloc reads it when a process starts."""
    environment = worker_environment(os.environ)
    if environment != os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], environment)


if __name__ == "__main__":
    _compute_as_a_worker_does()
    sys.exit(main())
