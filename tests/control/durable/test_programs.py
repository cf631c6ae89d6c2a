"""Names and owners of programs in the state, which takes over those of a cache folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pie_control.durable import commits, journal, writer
from pie_control.durable.state import State
from pie_control.programs.store import ProgramStore
from tests.control.programs.test_store import SOURCE, put, read


def opened(tmp_path: Path) -> tuple[State, ProgramStore]:
    state = State(tmp_path / "state", 30.0, 1 << 30)
    return state, ProgramStore(tmp_path / "cache", owners=state.programs, folder=state.folder / "programs")


def test_owners_of_a_folder_are_taken_over_once_and_kept_in_the_state(tmp_path: Path) -> None:
    without = ProgramStore(tmp_path / "cache")
    for owner in ("ada", "bob"):
        put(without, SOURCE, "tool", owner)
    folder = tmp_path / "cache" / "programs"
    state, store = opened(tmp_path)
    assert not (folder / "owners.json").exists()
    assert set(json.loads((folder / "owners.json.moved").read_text())) == {"ada", "bob"}
    second = put(store, SOURCE + b"# more", "tool", "ada")
    store.remove(store.get("tool", "bob"))
    for _ in range(2):
        state.close()
        state, store = opened(tmp_path)
        assert store.get("tool", "ada").hash == second.program
        assert [store.info(one).names for one in store.all("ada")] == [(), ("tool",)]
        assert not [*store.all("bob"), *store.all()]
    put(ProgramStore(tmp_path / "cache"), SOURCE, "tool", "bob")  # of a server without a state
    state.close()
    state, store = opened(tmp_path)
    assert store.get("tool", "bob").hash != second.program
    assert store.get("tool", "ada").hash == second.program
    state.close()


def test_a_name_that_moves_writes_the_two_programs_that_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, store = opened(tmp_path)
    first = put(store, SOURCE, "name").program
    put(store, SOURCE + b"# other", "other")
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(state.programs, "write", lambda _, changed: written.append(changed))
    third = put(store, SOURCE + b"# third", "name").program
    store.remove(store.get(third))
    assert [list(changed) for changed in written] == [[first, third], [third]]
    assert [written[0][first]["names"], written[0][third]["names"], written[1][third]] == [[], ["name"], None]
    state.close()


def test_what_one_of_two_servers_with_a_cache_folder_deletes_the_other_one_keeps(tmp_path: Path) -> None:
    put(ProgramStore(tmp_path / "cache"), SOURCE, "tool")
    state, store = opened(tmp_path)  # takes it over
    other = State(tmp_path / "other", 30.0, 1 << 30)
    second = ProgramStore(tmp_path / "cache", owners=other.programs, folder=other.folder / "programs")
    put(second, SOURCE, "mine")
    for one, name in ((store, "tool"), (second, "mine")):
        assert read(one, name) == SOURCE
    store.remove(store.get("tool"))
    assert read(second, "mine") == SOURCE
    for each in (state, other):
        each.close()


def test_programs_of_another_state_over_the_same_cache_are_nobodys(tmp_path: Path) -> None:
    state, store = opened(tmp_path)
    put(store, SOURCE, "tool", "ada")
    other = State(tmp_path / "other", 30.0, 1 << 30)
    assert not [*ProgramStore(tmp_path / "cache", owners=other.programs).all()]
    other.close()
    state.close()


def test_what_a_kill_has_left_goes_when_it_is_old(tmp_path: Path) -> None:
    state, store = opened(tmp_path)
    kept = put(store, SOURCE, "tool").program
    state.close()
    folder = state.folder / "programs"
    old = {f"{'a' * 64}.py": 31 * 86400, "tmpabc": 7200, f"{kept}.py": 40 * 86400}
    new = {f"{'b' * 64}.py": 29 * 86400, "tmpdef": 1800}
    for name, age in (old | new).items():
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    state, store = opened(tmp_path)
    assert {path.name for path in folder.iterdir()} == {f"{kept}.py", *new}
    assert store.get("tool").hash == kept
    state.close()


def test_a_name_that_the_disk_does_not_take_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, store = opened(tmp_path)
    before = put(store, SOURCE, "name")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "MOST_BYTES", 0)
        patched.setattr(writer, "commit", full)
        with pytest.raises(OSError, match="no space left"):
            put(store, SOURCE + b"# other", "name")
    assert store.get("name").hash == before.program
    assert writer.__dict__["commit"] is commits.commit
    state.close()
