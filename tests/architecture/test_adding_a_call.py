"""The worked example of docs/adding-a-call.md, carried out on a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tree import ROOT

PAGE = ROOT / "docs" / "adding-a-call.md"
COPIED = ("inferlet_sdk", "pie_control", "pie_inference", "testing", "tests")
LEFT_OUT = shutil.ignore_patterns("hostile", "system", "*.so")
BLOCK = re.compile(
    r"<!-- (file|at the end of|before the last line of): (\S+) -->\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL
)
NAMES = "tests/control/host_api/test_host_api.py::test_parameters_have_the_names_of_the_wit"
CHECKS = ("tests/sdk/test_traits.py", NAMES)
"""Tests that say what is missing, if anything is."""


def apply(tree: Path) -> list[str]:
    """Puts the blocks of the page where they belong; the files that are new or changed."""
    touched = []
    for how, name, text in BLOCK.findall(PAGE.read_text()):
        path = tree / name
        touched.append(name)
        if how == "file":
            assert not path.exists(), f"{name} exists: the example is no new call"
            path.write_text(text)
        elif how == "at the end of":
            path.write_text(path.read_text() + "\n\n" + text)
        else:
            *before, last = path.read_text().splitlines()
            path.write_text("\n".join([*before, text.rstrip("\n"), last]) + "\n")
    return touched


def run(tree: Path, *arguments: str) -> tuple[int, str]:
    """Status and output of Python in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree, env=environment, capture_output=True, text=True, timeout=4 * HANG_SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_call_of_the_page_works(tmp_path: Path) -> None:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=LEFT_OUT)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    touched = apply(tmp_path)
    own_test = [name for name in touched if name.startswith("tests/")]
    assert (len(touched), len(own_test)) == (4, 1)
    _, where = run(tmp_path, "-c", "import pie_control; print(pie_control.__file__)")
    assert where.startswith(str(tmp_path)), "the copy is what is tested"
    status, said = run(tmp_path, "-m", "pytest", "-q", *own_test, *CHECKS)
    assert status == 0, said
    (tmp_path / "pie_control" / "calls" / "allocate" / "count_kvpage.py").unlink()
    status, said = run(tmp_path, "-m", "pytest", "-q", NAMES)
    assert status == 1, said
    assert "allocate.count_kvpage" in said, "a call without a room is noticed"
