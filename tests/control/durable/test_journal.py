"""The journal: what a crash or a loss of power may leave of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pie_control.durable import database
from pie_control.durable.database import back_up
from pie_control.durable.journal import CLEAR_BYTES, Journal
from pie_control.durable.state import State


def test_zeros_are_the_end_of_a_journal(tmp_path: Path) -> None:
    """As a loss of power leaves them, where the size of a file was written and its content not."""
    records = Journal(tmp_path / "records")
    assert records.append(7, [("INSERT INTO counters VALUES (?, ?)", ("a", 1))])
    records.path.write_bytes(records.path.read_bytes() + bytes(4096))
    assert [number for number, _ in records.records()] == [7]
    records.close()


def test_a_large_journal_loses_what_is_committed_while_more_comes(tmp_path: Path) -> None:
    records = Journal(tmp_path / "records")
    write = "INSERT INTO counters VALUES (?, ?)", ("a" * (CLEAR_BYTES // 2), 1)
    assert all(records.append(number, [write]) for number in (1, 2, 3))
    records.committed([(0, [write]), (3, [write])])
    assert records.path.stat().st_size < CLEAR_BYTES
    assert records.append(4, [write])
    assert [number for number, _ in records.records()] == [3, 4]
    records.close()


def test_a_server_starts_and_is_copied_with_a_journal_of_zeros(tmp_path: Path) -> None:
    folder, copy = tmp_path / "state", tmp_path / "copy"
    State(folder, 1.0, 1 << 30).close()
    (folder / "journal").write_bytes(bytes(4096))
    back_up(folder, copy)
    assert copy.stat().st_size > 0
    State(folder, 1.0, 1 << 30).close()


def test_what_another_version_has_written_for_other_tables_is_left_out(tmp_path: Path) -> None:
    State(tmp_path, 1.0, 1 << 30).close()
    left = Journal(tmp_path / "journal")
    assert left.append(1 << 40, [("INSERT INTO usage VALUES (?, ?)", (1, "a column more"))])
    kept = "INSERT INTO programs VALUES (?, ?, ?)", ("alice", "p1", '{"names": ["story"]}')
    assert left.append((1 << 40) + 1, [kept])
    assert left.append((1 << 40) + 2, [("DELETE FROM what_is_to_come", ())])
    left.close()
    state = State(tmp_path, 1.0, 1 << 30)
    assert state.programs.read() == {"alice": {"p1": {"names": ["story"]}}}
    state.close()


@pytest.mark.parametrize("kind", [sqlite3.DatabaseError, ValueError])
def test_a_copy_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> int:
        raise kind("no")

    folder, copy = tmp_path / "state", tmp_path / "copy"
    State(folder, 1.0, 1 << 30).close()
    monkeypatch.setattr(database, "catch_up", fail)
    with pytest.raises(Exception, match="no"):
        back_up(folder, copy)
    assert not copy.exists()
