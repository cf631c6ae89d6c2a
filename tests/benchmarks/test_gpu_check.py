"""The script for whoever has a GPU, tried out without one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import gpu_check
from benchmarks.gpu.checking import serving
from benchmarks.gpu.checking.results import Checks, Errors, Found, Setting, append, read

from .running import run

ON_CPU = replace(gpu_check.QUICK, device="cpu")
OWN_PROCESS = "triton ops"
"""Triton's interpreter needs one."""


async def run_here(path: str, plan: gpu_check.Plan, folder: Path, end: float) -> None:
    """Stands for `run_path`: a process that imports torch for each path would take most of the time."""
    gpu_check._run_path(path, plan.device, str(plan.cases), str(folder))


def test_it_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TOKENS", 4)
    in_process = gpu_check.run_path
    monkeypatch.setattr(
        gpu_check, "run_path", lambda path, *more: (in_process if path == OWN_PROCESS else run_here)(path, *more)
    )
    paths = ["triton ops", "host pages", "moves", "model", "graphs"]
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
        "experts",
        "recurrences",
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
    assert [each["name"] for each in checks if each["passed"] is None] == ["bfloat16", "graphs"]


def test_a_check_that_raises_fails_and_tells_where() -> None:
    found = gpu_check.run_check("path", "name", lambda: serving._swap(torch.device("meta")))
    assert found.passed is False
    assert re.search(r"^\w+: .* \((pie_inference|benchmarks)/[\w/]+\.py:\d+\)$", found.note, re.DOTALL)


def test_of_a_long_error_both_ends_are_told() -> None:
    told = gpu_check.told(RuntimeError(f"Ninja build failed. {'nvcc ' * 1000} fatal error: cublasLt.h: No such file"))
    assert told.startswith("RuntimeError: Ninja build failed.")
    assert told.endswith("fatal error: cublasLt.h: No such file")
    assert len(told) < 1.1 * gpu_check.MOST_TOLD


def run_processes(
    ends: Sequence[tuple[list[Found], int | None]], folder: Path, patch: pytest.MonkeyPatch
) -> list[Found]:
    """What is found of a path whose processes write these results and end with these statuses."""
    processes = iter(ends)

    async def run_group(words: Sequence[str], seconds: float) -> int | None:
        found, status = next(processes)
        for each in found:
            append(gpu_check.results_of("masks", folder), each)
        return status

    patch.setattr(gpu_check, "run_group", run_group)
    asyncio.run(gpu_check.run_path("masks", gpu_check.FULL, folder, time.monotonic() + 100))
    assert next(processes, None) is None
    return read(gpu_check.results_of("masks", folder))


GOOD, BAD = (Found("masks", name, passed) for name, passed in (("good", True), ("bad", False)))
BEGUN = Found("masks", "begun", None, note=gpu_check.UNDER_WAY)


def test_a_check_that_ends_its_process_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *found, failed = run_processes([([GOOD, BEGUN], -11), ([], 0)], tmp_path, monkeypatch)
    assert (found, failed.name, failed.passed) == ([GOOD], "begun", False)
    assert failed.note.startswith("its process ended with -11 after")


def test_where_the_gpu_is_lost_another_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_processes([([BAD], gpu_check.LOST), ([GOOD], 0)], tmp_path, monkeypatch) == [BAD, GOOD]


def test_processes_that_end_again_and_again_leave_the_rest_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [([replace(BEGUN, name=str(number))], 1) for number in range(gpu_check.MOST_PROCESSES)]
    *failed, rest = run_processes(ends, tmp_path, monkeypatch)
    assert {each.passed for each in failed} == {False}
    assert (rest.passed, rest.name) == (None, "")


def test_a_check_for_which_no_time_is_left_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, rest = run_processes([([BEGUN], None)], tmp_path, monkeypatch)
    assert (begun.passed, rest.passed) == (None, None)
    assert "no time left for all of it" in rest.note


def test_a_process_that_dies_before_its_checks_fails_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [failed] = run_processes([([], 1)], tmp_path, monkeypatch)
    assert (failed.passed, failed.note[:26]) == (False, "its process ended with 1 a")


def test_a_path_goes_on_behind_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[str]()

    def check(name: str) -> Errors:
        ran.append(name)
        return Errors()

    def checks(setting: Setting) -> Checks:
        yield "good", partial(check, "good")
        yield "next", partial(check, "next")
        raise RuntimeError("no more")

    monkeypatch.setattr(gpu_check, "PATHS", {"masks": checks})
    append(gpu_check.results_of("masks", tmp_path), GOOD)
    gpu_check._run_path("masks", "cpu", "0", str(tmp_path))
    found = read(gpu_check.results_of("masks", tmp_path))
    assert (ran, [each.passed for each in found]) == (["next"], [True, True, False])
    assert found[-1].note.startswith("RuntimeError: no more")


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "masks.jsonl"
    append(file, GOOD)
    file.write_text(f'{file.read_text()}{{"path": "ma')
    append(file, BAD)
    append(file, replace(GOOD, note="again"))
    assert read(file) == [replace(GOOD, note="again")]


def test_graphs_that_were_not_recorded_fail() -> None:
    executor = SimpleNamespace(_recordings={(1, None): None, (2, (16,)): object()})
    worker = SimpleNamespace(_served=SimpleNamespace(executor=executor))
    serving.need_recorded(worker, adapted=True)
    with pytest.raises(AssertionError, match="no step was recorded"):
        serving.need_recorded(worker)
