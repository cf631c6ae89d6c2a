"""By what command child processes begin."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pie_inference.options.lifetime import command_of
from tests.helpers.tree import ROOT


def test_a_child_process_imports_nothing_of_the_folder_that_the_user_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("calendar", "random"):  # as people call their programs
        (tmp_path / f"{module}.py").write_text("print('mine')")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([*command_of("calendar"), "2026", "11"], capture_output=True, text=True, check=True)
    assert "November 2026" in done.stdout
    assert "mine" not in done.stdout


def test_in_a_checkout_the_packages_are_those_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert "-P" not in command_of("pie_inference.serving")


def test_no_child_process_begins_in_another_way() -> None:
    files = [path for package in ("pie_control", "pie_inference") for path in (ROOT / package).rglob("*.py")]
    assert [path.name for path in files if '"-m"' in path.read_text("utf-8")] == ["lifetime.py"]
