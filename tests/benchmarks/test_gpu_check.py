"""The script for whoever has a GPU, tried out without one."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from tests.helpers.tree import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import gpu_check
from benchmarks.gpu.check_results import Errors, Found, append, read


def test_it_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "check.json"
    paths = ["triton ops", "sampling", "host pages", "model", "graphs"]
    assert gpu_check.main(["--device", "cpu", "--quick", "--only", ",".join(paths), "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    outcomes = {path: {each["passed"] for each in report["checks"] if each["path"] == path} for path in paths}
    assert outcomes == {path: {None if path == "graphs" else True} for path in paths}
    assert all(each["relative_error"] < 2e-2 for each in report["checks"] if each["path"] == "triton ops")
    assert "0 failed, 1 left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("relative", "passed"), [(1e-3, True), (2e-3, False), (float("nan"), False)], ids=["less", "more", "not a number"]
)
def test_an_error_is_compared_with_what_is_allowed(relative: float, passed: bool) -> None:
    found = gpu_check._run_check("path", "name", lambda: Errors(relative=relative, allowed=1.5e-3))
    assert found.passed is passed


def test_a_check_that_raises_fails() -> None:
    def run() -> Errors:
        raise RuntimeError("an illegal memory access")

    found = gpu_check._run_check("path", "name", run)
    assert (found.passed, found.note) == (False, "RuntimeError: an illegal memory access")


def test_a_process_that_dies_fails_its_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    append(tmp_path / "no such path.jsonl", Found("no such path", "done before", True))
    options = Namespace(device="cpu", quick=True)
    before, failed = gpu_check._run_in_process("no such path", options, tmp_path, 60.0)
    assert (before.passed, failed.passed, failed.note) == (True, False, "its process ended with 1")
    assert "KeyError" in capfd.readouterr().err


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "LEAST_SECONDS", 0.0)
    [failed] = gpu_check._run_in_process("sampling", Namespace(device="cpu", quick=True), tmp_path, 0.01)
    assert (failed.passed, failed.note) == (False, "did not end within 0 s")
    monkeypatch.setattr(gpu_check, "LEAST_SECONDS", 1.0)
    [left_out] = gpu_check._run_in_process("sampling", Namespace(device="cpu", quick=True), tmp_path, 0.01)
    assert left_out.passed is None


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "found.jsonl"
    append(file, Found("a", "b", True))
    file.write_text(file.read_text() + '{"path": "c')
    assert read(file) == [Found("a", "b", True)]


def test_unknown_paths_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["--device", "cpu", "--only", "tritn ops"])
    assert "tritn ops: there are torch ops" in capsys.readouterr().err
