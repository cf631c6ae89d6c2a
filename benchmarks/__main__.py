"""`python -m benchmarks NAME --json FILE [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pie_control.inference_client.process import worker_environment

from . import report

BENCHMARKS = ("launch", "api_calls", "tpot", "idle", "scheduler")
MOST_LOAD = 0.5
"""Runnable processes of others; above it, times say more of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark, prints its rows as a table and writes them as JSON."""
    options = _parser().parse_args(arguments)
    os.environ.update(worker_environment(os.environ))  # the closed loop computes as a worker does
    machine = report.machine()
    if machine.load > MOST_LOAD:
        print(f"the machine is not idle (load {machine.load}): times will be too long", file=sys.stderr)
    rows = run(options.name, options.quick)
    made = report.make_report(options.name, "quick" if options.quick else "full", machine, rows)
    print(report.as_table(made.rows))
    if options.json is not None:
        made.write(options.json)
    return 0


def run(name: str, quick: bool) -> list[Any]:
    """The rows of a benchmark, as dataclasses."""
    module = importlib.import_module(f"benchmarks.{name}")
    rows: list[Any] = asyncio.run(module.run(module.QUICK if quick else module.FULL))
    assert all(dataclasses.is_dataclass(row) for row in rows)
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measures Pie; docs/benchmarks.md has more.")
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go, with machine and commit")
    parser.add_argument("--quick", action="store_true", help="fewer rows and samples, in less than a minute")
    return parser


if __name__ == "__main__":
    sys.exit(main())
