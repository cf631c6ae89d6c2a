"""Two commits in turns, with a benchmark that only tells which tree it ran on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.compare import Plan, Row
from tests.helpers.tree import ROOT

DRIVER = """
import argparse, json, pathlib, runpy
from speed import MS  # the tree's

parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--json", type=pathlib.Path)
parser.add_argument("--tree", type=pathlib.Path)
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()
assert not options.fail, "it was told to fail"
served = runpy.run_path(str(options.tree / "speed.py"))["MS"] if options.tree else 0.0
row = {"name": options.name, "driver_ms": DRIVER_MS, "ms": MS, "served_ms": served, "note": str(MS)}
options.json.write_text(json.dumps({"rows": [row]}))
"""


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which a step takes 4 ms; it takes 1 ms in the tree. The driver changed too."""
    root = tmp_path / "root"
    (root / "benchmarks").mkdir(parents=True)
    (root / "benchmarks" / "__init__.py").touch()
    git(root, "init", "--quiet")
    for driver_ms, ms in ((8.0, 4.0), (2.0, 1.0)):
        (root / "benchmarks" / "__main__.py").write_text(f"DRIVER_MS = {driver_ms}\n{DRIVER}")
        (root / "speed.py").write_text(f"MS = {ms}")
        if ms == 4.0:
            git(root, "add", ".")
            git(root, "commit", "--quiet", "-m", "Be slow")
    monkeypatch.setattr(compare, "ROOT", root)
    return root


def test_in_a_benchmark_without_a_server_packages_are_each_trees(root: Path) -> None:
    rows = asyncio.run(compare.run(Plan("HEAD", "scheduler", (), rounds=2)))
    assert rows == [
        Row("scheduler", "driver_ms", 2.0, 2.0, 1.0, 1.0, 1.0),
        Row("scheduler", "ms", 4.0, 1.0, 0.25, 0.25, 0.25),
    ]


def test_in_a_benchmark_with_a_server_only_the_server_is_each_trees(root: Path) -> None:
    rows = asyncio.run(compare.run(Plan("HEAD", "tpot", (), rounds=1)))
    assert {row.number: row.ratio for row in rows} == {"driver_ms": 1.0, "ms": 1.0, "served_ms": 0.25}


SERVES = """
import benchmarks, pie_control
print(f"serving x at {pie_control.__file__},{benchmarks.__file__}", flush=True)
input()
"""
STARTS = """
import asyncio
from benchmarks.support.server import serving

async def start():
    async with serving(("served",)) as server:
        print(server.url)

asyncio.run(start())
"""


def test_a_server_that_a_benchmark_starts_has_the_packages_of_the_benchmarks_process(tmp_path: Path) -> None:
    driver, tree = tmp_path / "driver", tmp_path / "tree"
    for folder, packages in ((driver, ["benchmarks"]), (tree, ["benchmarks", "pie_control", "pie_inference"])):
        folder.mkdir()
        for package in packages:
            (folder / package).symlink_to(ROOT / package)
    (tree / "served.py").write_text(SERVES)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    told = subprocess.check_output([sys.executable, "-c", STARTS], cwd=driver, env=environment, text=True)
    assert told.strip() == f"{tree}/pie_control/__init__.py,{driver}/benchmarks/__init__.py"


def test_nothing_is_left_behind(root: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)scheduler --fail .*ended with 1.*it was told to fail"):
        asyncio.run(compare.run(Plan("HEAD", "scheduler", ("--fail",), rounds=1)))
    listed = subprocess.run(["git", "worktree", "list"], cwd=root, check=True, capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1


def rounds(*values: float, **more: Any) -> Sequence[compare.Rows]:
    return [[{"guest": "python", "inferlets": 3, "ms": value, **more}] for value in values]


def test_ratios_are_of_each_round() -> None:
    assert compare.compared(rounds(1.0, 2.0, 4.0), rounds(1.5, 2.0, 2.0)) == [
        Row("python inferlets=3", "ms", 2.0, 2.0, 1.0, 0.5, 1.5)
    ]


def test_what_has_no_ratio_is_left_out() -> None:
    assert [
        row.number for row in compare.compared(rounds(1.0, zero=0.0, none=None), rounds(1.0, zero=0.0, none=None))
    ] == ["ms"]


def test_turns_with_other_rows_cannot_be_compared() -> None:
    with pytest.raises(SystemExit, match="the turns gave 0 or 1 rows"):
        compare.compared([[]], rounds(1.0))
