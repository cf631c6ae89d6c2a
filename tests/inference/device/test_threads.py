"""Threads are counted by what the process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pie_inference.device import threads


@pytest.fixture(autouse=True)
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores with an empty tree of control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    monkeypatch.setattr(threads, "OWN_CGROUP", tmp_path / "self")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups_all_cores_that_it_may_run_on() -> None:
    assert threads.usable_cores() == 8


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("9900000 100000", 8),
        ("", 8),
    ],
)
def test_a_quota_of_version_2(text: str, cores: int, groups: Path) -> None:
    write(groups / "self", "0::/\n")
    write(groups / "cpu.max", text)
    assert threads.usable_cores() == cores


def test_the_least_quota_on_the_way_to_the_root(groups: Path) -> None:
    write(groups / "self", "0::/user.slice/run.scope\n")
    write(groups / "user.slice" / "cpu.max", "300000 100000")
    write(groups / "user.slice" / "run.scope" / "cpu.max", "max 100000")
    write(groups / "other.slice" / "cpu.max", "100000 100000")
    assert threads.usable_cores() == 3


def test_a_quota_of_version_1(groups: Path) -> None:
    write(groups / "self", "4:memory:/tiny\n3:cpu,cpuacct:/box\n")
    write(groups / "cpu" / "box" / "cpu.cfs_quota_us", "400000\n")
    write(groups / "cpu" / "box" / "cpu.cfs_period_us", "100000\n")
    write(groups / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(groups / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert threads.usable_cores() == 4


def test_default_threads_leave_a_core_where_there_are_some() -> None:
    assert threads.default_threads(threads.SMALL_MODEL_BYTES - 1) == 1
    assert threads.default_threads(threads.SMALL_MODEL_BYTES) == 7
