"""`pie state restore`: a copy comes in place of a state, whatever is beside that."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from pie_control.durable.database import FILE, back_up, open_database, own_folder, put_back
from pie_control.durable.inferlets import InferletRecord
from pie_control.durable.keys import add_key, list_keys, revoke_key
from pie_control.durable.state import State
from pie_control.errors import ConfigError
from pie_control.tenants.budgets import DAY
from pie_control.tenants.meters import Usage
from tests.helpers.guard import HANG_SECONDS


def run(state: State, count: int) -> None:
    for _ in range(count):
        number = state.inferlets.next_number()
        state.inferlets.launched(number, "alice", "p" * 64, "story", 0.0)
        ended = InferletRecord(number, "alice", "p" * 64, "story", 0, None, 0.0, "finished", 1.0, 0.1, "r" * 800, None)
        state.inferlets.ended(ended)
    state.inferlets._writer.wait(HANG_SECONDS)


def test_a_copy_replaces_a_damaged_file_and_what_sqlite_kept_beside_it(tmp_path: Path) -> None:
    folder, crashed, copy = tmp_path / "state", tmp_path / "crashed", tmp_path / "copy"
    state = State(folder, 1e6, 1 << 30)
    run(state, 20)
    back_up(folder, copy)
    with sqlite3.connect(folder / FILE) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    run(state, 200)
    shutil.copytree(folder, crashed)
    other.close()
    with pytest.raises(ConfigError, match="another server"):
        put_back(folder, copy)
    state.close()
    assert (crashed / f"{FILE}-wal").stat().st_size > 0
    (crashed / FILE).write_bytes(bytes(4096))
    (crashed / "journal").unlink()
    assert not put_back(crashed, copy), "the keys cannot be read"
    again = State(crashed, 1e6, 1 << 30)
    assert again._reader.execute("PRAGMA integrity_check") == [("ok",)]
    assert [one.number for one in again.inferlets.newest(1000)] == list(range(1, 21))
    again.close()


def test_a_restore_that_is_killed_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, crashed, copy = tmp_path / "state", tmp_path / "crashed", tmp_path / "copy"
    state = State(folder, 1e6, 1 << 30)
    run(state, 20)
    back_up(folder, copy)
    run(state, 100)
    shutil.copytree(folder, crashed)
    state.close()
    (crashed / "journal").unlink()
    monkeypatch.setattr("pie_control.durable.database.os.replace", lambda *_: sys.exit("killed"))
    with pytest.raises(SystemExit):
        put_back(crashed, copy)
    monkeypatch.undo()
    again = State(crashed, 1e6, 1 << 30)
    assert len([*again.inferlets.newest(1000)]) == 120, "also what was in the log of SQLite alone"
    again.close()


def test_keys_stay_as_they_are(tmp_path: Path) -> None:
    folder, copy = tmp_path / "state", tmp_path / "copy"
    with closing(open_database(own_folder(folder))) as database:
        add_key(database, "default", "first", b"1" * 32, "abcd", ("launch",), None)
        back_up(folder, copy)
        revoke_key(database, "first")
        add_key(database, "default", "second", b"2" * 32, "abcd", ("launch",), None)
    for state in (folder, tmp_path / "empty"):
        assert put_back(state, copy)
        with closing(open_database(state)) as database:
            valid = {key.name: key.revoked is None for key in list_keys(database)}
        assert valid == ({"first": False, "second": True} if state == folder else {"first": True})


def test_nothing_that_was_audited_or_used_is_lost(tmp_path: Path) -> None:
    folder, other, copy = tmp_path / "state", tmp_path / "other", tmp_path / "copy"
    today = int(time.time() // DAY)

    def run(days: dict[int, int], subjects: str, path: Path = folder, restored: int = 0) -> tuple[list[int], str]:
        state = State(path, 1e6, 1 << 30)
        for subject in subjects:
            state.audit.note("alice", "", "upload", subject)
        for day, requests in days.items():
            state.usage.write(today + day, [("alice", "", Usage(requests))])
        state._writer.wait(HANG_SECONDS)
        used = [one.requests for one in state.usage.since(0)]
        done = state.read_audit(100)
        assert [one.subject for one in done if one.action == "restore the state"] == [str(copy)] * restored
        audited = "".join(one.subject * one.count for one in done if one.action == "upload")
        state.close()
        return used, audited

    run({1: 5, 2: 5}, "ab")
    back_up(folder, copy)
    run({2: 7, 3: 1}, "acc")
    run({2: 6}, "d", other)
    for path, used, audited in ((folder, [5, 7, 1], "aabcc"), (other, [5, 6], "abd")):
        assert put_back(path, copy)
        assert run({}, "", path, restored=1) == (used, audited)


def test_what_is_no_copy_changes_nothing(tmp_path: Path) -> None:
    folder, damaged, foreign = tmp_path / "state", tmp_path / "damaged", tmp_path / "foreign"
    state = State(folder, 1e6, 1 << 30)
    run(state, 20)
    state.close()
    before = (folder / FILE).read_bytes()
    damaged.write_bytes(before[:4096] + bytes(4096) + before[8192:])
    sqlite3.connect(foreign).close()
    for copy in (damaged, foreign, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="cannot be put into"):
            put_back(folder, copy)
    assert (folder / FILE).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["journal", "lock", FILE]
