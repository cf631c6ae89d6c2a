"""The script for whoever has a GPU, tried out without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import gpu_check
from benchmarks.gpu.checking import serving
from benchmarks.gpu.checking.results import Errors, Found, append, read

from .running import run

ON_CPU = replace(gpu_check.QUICK, device="cpu")
OWN_PROCESS = "triton ops"
"""Triton's interpreter needs one."""


def run_here(path: str, plan: gpu_check.Plan, folder: Path, seconds: float) -> list[Found]:
    """Stands for `run_in_process`: a process that imports torch for each path would take most of the time."""
    file = folder / f"{path}.jsonl"
    gpu_check._run_path(path, plan.device, str(plan.cases), str(file), str(folder))
    return read(file)


def test_it_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TOKENS", 4)
    in_process = gpu_check.run_in_process
    monkeypatch.setattr(
        gpu_check,
        "run_in_process",
        lambda path, *more: (in_process if path == OWN_PROCESS else run_here)(path, *more),
    )
    paths = ["triton ops", "host pages", "model", "graphs"]
    checks = run(tmp_path, "gpu_check", "--device", "cpu", "--quick", "--only", ",".join(paths))
    outcomes = {path: {each["passed"] for each in checks if each["path"] == path} for path in paths}
    assert outcomes == {path: {None if path == "graphs" else True} for path in paths}
    assert all(each["relative_error"] < 2e-2 for each in checks if each["path"] == "triton ops")
    assert "0 failed, 1 left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("relative", "passed"), [(1e-3, True), (2e-3, False), (float("nan"), False)], ids=["less", "more", "not a number"]
)
def test_an_error_is_compared_with_what_is_allowed(relative: float, passed: bool) -> None:
    found = gpu_check.run_check("path", "name", lambda: Errors(relative=relative, allowed=1.5e-3))
    assert found.passed is passed


def test_what_few_batches_have_is_checked_on_a_cpu_too(tmp_path: Path) -> None:
    paths = [
        "sampling",
        "adapter products",
        "triton adapter products",
        "adapters",
        "images",
        "masks",
        "scores",
        "grammars",
    ]
    checks = run(tmp_path, "gpu_check", "--device", "cpu", "--quick", "--only", ",".join(paths))
    assert {each["path"] for each in checks} == set(paths)
    assert [(each["path"], each["name"], each["note"]) for each in checks if each["passed"] is False] == []
    assert [each["name"] for each in checks if each["passed"] is None] == ["graphs"]


def test_a_check_that_raises_fails() -> None:
    def check() -> Errors:
        raise RuntimeError("an illegal memory access")

    found = gpu_check.run_check("path", "name", check)
    assert (found.passed, found.note) == (False, "RuntimeError: an illegal memory access")


def test_a_process_that_dies_fails_its_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    append(tmp_path / "no such path.jsonl", Found("no such path", "done before", True))
    before, failed = gpu_check.run_in_process("no such path", ON_CPU, tmp_path, 60.0)
    assert (before.passed, failed.passed, failed.note) == (True, False, "its process ended with 1")
    assert "KeyError" in capfd.readouterr().err


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "LEAST_SECONDS", 0.0)
    [cut] = gpu_check.run_in_process("sampling", ON_CPU, tmp_path, 0.01)
    assert (cut.passed, cut.note) == (None, "no time left for all of it: it had 0 s")
    monkeypatch.setattr(gpu_check, "AMPLE_SECONDS", 0.0)
    [failed] = gpu_check.run_in_process("sampling", ON_CPU, tmp_path, 0.01)
    assert (failed.passed, failed.note) == (False, "did not end within 0 s")
    monkeypatch.setattr(gpu_check, "LEAST_SECONDS", 1.0)
    [left_out] = gpu_check.run_in_process("sampling", ON_CPU, tmp_path, 0.01)
    assert left_out.passed is None


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "found.jsonl"
    append(file, Found("a", "b", True))
    file.write_text(file.read_text() + '{"path": "c')
    assert read(file) == [Found("a", "b", True)]


@pytest.mark.parametrize(
    ("outcomes", "passed"), [((True, None), True), ((True, False), False), ((None,), False)], ids=str
)
def test_it_passes_if_some_check_ran_and_none_failed(outcomes: tuple[bool | None, ...], passed: bool) -> None:
    assert gpu_check.passed([Found("path", "name", outcome) for outcome in outcomes]) is passed
