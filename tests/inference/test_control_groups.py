"""What control groups leave a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pie_control.config import default_hosts
from pie_control.host_memory import machine_memory
from pie_inference import control_groups
from pie_inference.control_groups import memory_left, memory_limits, usable_cores


@pytest.fixture(autouse=True)
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores with an empty tree of control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "self")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups_all_cores_that_it_may_run_on() -> None:
    assert usable_cores() == 8


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
    assert usable_cores() == cores
    assert default_hosts() == max(1, cores // 2)


def test_the_least_quota_on_the_way_to_the_root(groups: Path) -> None:
    write(groups / "self", "0::/user.slice/run.scope\n")
    write(groups / "user.slice" / "cpu.max", "300000 100000")
    write(groups / "user.slice" / "run.scope" / "cpu.max", "max 100000")
    write(groups / "other.slice" / "cpu.max", "100000 100000")
    assert usable_cores() == 3


def test_a_quota_of_version_1(groups: Path) -> None:
    write(groups / "self", "4:memory:/tiny\n3:cpu,cpuacct:/box\n")
    write(groups / "cpu" / "box" / "cpu.cfs_quota_us", "400000\n")
    write(groups / "cpu" / "box" / "cpu.cfs_period_us", "100000\n")
    write(groups / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(groups / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert usable_cores() == 4


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory(folder: Path, limit: str, used: int, cached: int) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", str(used))
    write(folder / "memory.stat", f"anon 1\ninactive_file {cached}\n")


def test_memory_is_limited_by_each_group_up_to_the_root(groups: Path) -> None:
    write(groups / "self", "0::/system.slice/pie.service\n")
    memory(groups, "max\n", 9000, 0)
    memory(groups / "system.slice", "5000\n", 4000, 500)
    memory(groups / "system.slice" / "pie.service", "1000\n", 700, 200)
    memory(groups / "other.slice", "10", 0, 0)
    assert (list(memory_limits()), list(memory_left())) == ([1000, 5000], [500, 1500])
    assert machine_memory() == 1000


def test_memory_by_version_1(groups: Path) -> None:
    write(groups / "self", "5:cpu,cpuacct:/a\n4:memory:/docker/1\n0::/a\n")
    for name, text in (("limit_in_bytes", "3000\n"), ("usage_in_bytes", "1000\n")):
        write(groups / "memory" / f"memory.{name}", text)
    write(groups / "memory" / "memory.stat", "inactive_file 1\ntotal_inactive_file 400\n")
    assert (list(memory_limits()), list(memory_left())) == ([3000], [2400])


def test_a_group_that_uses_more_than_it_may_leaves_nothing(groups: Path) -> None:
    write(groups / "self", "0::/\n")
    memory(groups, "100", 200, 0)
    assert list(memory_left()) == [0]
    (groups / "self").unlink()
    assert list(memory_left()) == list(memory_limits()) == []
