"""The short form of every benchmark, as its command gives it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import catalog
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT

ELSEWHERE = {"compare", "paper", "serve"}
"""They compare two trees, run the others, or take minutes: test_serving.py has a shorter form."""
NAMES = sorted(catalog.find().keys() - ELSEWHERE)
NEEDS_GPU = {"gpu_bench", "gpu_check"}


@pytest.mark.timeout(0)  # the command has a limit of its own, which is beyond that of other tests
@pytest.mark.parametrize("name", corpus(NAMES, kind=lambda _name: "benchmark"))
def test_the_short_form_runs(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * HANG_SECONDS, check=False)
    if name in NEEDS_GPU and not torch.cuda.is_available():
        assert done.returncode != 0
        assert "CUDA" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(report.read_text())["rows"]
