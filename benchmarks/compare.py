"""How much faster or slower is this tree than another commit, by one of the benchmarks, in turns?

    python -m benchmarks compare [--rounds N] [--json FILE] BASE NAME [options of NAME]

checks BASE out into a temporary folder and runs NAME with these options on both trees, in turns. Both run this tree's
benchmark. A benchmark with the option --tree starts a server of each tree and uses this tree's client, so both trees
must know the same routes and settings. Any other benchmark imports the packages of each tree.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import catalog, plans
from .report import ROOT
from .support.processes import run_group
from .support.samples import median

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    base: str
    name: str
    options: tuple[str, ...]
    rounds: int


@dataclass(frozen=True)
class Row:
    """One number of one row of the benchmark. `base`, `here` and `ratio` (this tree / base) are medians over the
    rounds; `least` and `most` are the smallest and the largest ratio of a round."""

    row: str
    number: str
    base: float
    here: float
    ratio: float
    least: float
    most: float


def add_options(parser: argparse.ArgumentParser, _: catalog.Benchmark) -> None:
    parser.set_defaults(form="full")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each tree (5)")
    parser.add_argument("base", metavar="BASE", help="a commit, such as HEAD~3")
    parser.add_argument("benchmark", metavar="NAME", help="any other benchmark")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="its options")


def chosen(_: catalog.Benchmark, options: argparse.Namespace) -> Plan:
    """The plan. Raises ValueError if there is no such commit or benchmark; exits if the benchmark does not know an
    option."""
    own = argparse.ArgumentParser(f"python -m benchmarks {options.benchmark}", allow_abbrev=False)
    benchmark = _load(options.benchmark)
    plans.add_options(own, benchmark)
    try:
        plans.chosen(benchmark, own.parse_args(options.options))
    except ValueError as error:
        own.error(str(error))
    if options.rounds < 1:
        raise ValueError(f"--rounds is {options.rounds}: give 1 or more")
    return Plan(_commit(options.base), options.benchmark, tuple(options.options), options.rounds)


def _load(name: str) -> catalog.Benchmark:
    entries = {key: entry for key, entry in catalog.find().items() if entry.module != __name__}
    plans.refuse_unknown("benchmark", (name,), tuple(entries))
    return entries[name].load()


def _commit(base: str) -> str:
    words = ["git", "rev-parse", "--verify", "--quiet", "--short=12", f"{base}^{{commit}}"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        raise ValueError(f"there is no commit {base} in {ROOT}")
    return found.stdout.strip()


async def run(plan: Plan) -> list[Row]:
    """Runs all rounds. A round begins with the tree that ended the round before, so that both trees suffer alike from a
    machine that becomes slower."""
    serves = any(field.name == "tree" for field in dataclasses.fields(_load(plan.name).FULL))
    runs: dict[Path, list[Rows]] = {}
    with _checked_out(plan.base) as base, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "benchmarks").symlink_to(ROOT / "benchmarks")
        for number in range(plan.rounds):
            for tree in (base, ROOT) if number % 2 == 0 else (ROOT, base):
                print(f"round {number + 1}: {'base' if tree == base else 'here'} ...", file=sys.stderr, flush=True)
                runs.setdefault(tree, []).append(await _turn(plan, tree, serves, Path(folder)))
        return compared(runs[base], runs[ROOT])


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pie-base-") as folder:
        tree = Path(folder).resolve() / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


async def _turn(plan: Plan, tree: Path, serves: bool, folder: Path) -> Rows:
    """Runs one turn. `folder` has only the benchmarks, so that the other packages come from the path."""
    file = folder / "rows.json"
    words = [sys.executable, "-m", "benchmarks", plan.name, *plan.options, "--json", str(file)]
    words += ["--tree", str(tree)] if serves else []
    path = os.pathsep.join(filter(None, (str(ROOT if serves else tree), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile("w+") as errors:
        own = {**os.environ, "PYTHONPATH": path}
        if code := await run_group(words, cwd=folder, env=own, stdout=subprocess.DEVNULL, stderr=errors):
            errors.seek(0)
            raise SystemExit(f"{shlex.join(words[2:])} ended with {code}: {errors.read()[-2000:]}")
    rows: Rows = json.loads(file.read_text())["rows"]
    return rows


def compared(base: Sequence[Rows], here: Sequence[Rows]) -> list[Row]:
    """Compares the rows of all rounds: a row for each float, named by the other fields, which are equal in all
    rounds."""
    if len(counts := {len(rows) for rows in (*base, *here)}) != 1:
        raise SystemExit(f"the turns gave {' or '.join(map(str, sorted(counts)))} rows: they cannot be compared")
    return [each for rows in zip(*base, *here, strict=True) for each in _compared_row(rows)]


def _compared_row(rows: Rows) -> Iterator[Row]:
    """Compares one row. `rows`: this row in the base's rounds, then in ours."""
    half = len(rows) // 2
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    alike = {name: values[0] for name, values in columns.items() if len({str(one) for one in values}) == 1}
    same = {name: value for name, value in alike.items() if isinstance(value, str | int)}
    texts = (value if isinstance(value, str) else f"{name}={value}" for name, value in same.items())
    label = " ".join(text for text in texts if text)
    for number, values in columns.items():
        if all(isinstance(value, float) and value for value in values):
            base, here = values[:half], values[half:]
            ratios = [one / other for one, other in zip(here, base, strict=True)]
            told = (median(base), median(here), median(ratios), min(ratios), max(ratios))
            yield Row(label, number, *(float(f"{value:.4g}") for value in told))
