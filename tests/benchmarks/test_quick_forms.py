"""The short form of every benchmark, as its command gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import catalog
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT

from .running import rows_of

ELSEWHERE = {"compare", "paper", "policies", "serve", "soak"}
"""They compare two trees, run the others, or take long: test_serving.py and test_control.py have shorter forms."""
LESS = {
    "agents": "--kinds codeact --rounds 1 --concurrent 1 --agents 1",
    "features": "--features completion --rounds 1 --concurrent 2 --requests 2",
    "model_sizes": "--models demo --rounds 1 --seconds 0",
    "optimizations": "--concurrent 2 --agents 2",
    "techniques": "--techniques early_tools,recursion_of_thought",
}
"""What is left of those that take minutes. All of the first four run in test_paper.py and test_control.py, with fewer
tokens, and all techniques in examples/test_techniques.py."""
NAMES = sorted(catalog.find().keys() - ELSEWHERE, key=lambda name: (name != "metrics", name))
"""The first one is what `make test` runs: it takes a second."""
NEEDS_GPU = {"gpu_bench", "gpu_check"}


@pytest.mark.timeout(0)  # the command has a limit of its own, which is beyond that of other tests
@pytest.mark.parametrize("name", corpus(NAMES, kind=lambda _name: "benchmark"))
def test_the_short_form_runs(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json", str(report), *LESS.get(name, "").split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * HANG_SECONDS, check=False)
    if name in NEEDS_GPU and not torch.cuda.is_available():
        assert done.returncode != 0
        assert "CUDA" in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        assert rows_of(name, report)
