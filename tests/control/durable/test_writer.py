"""What is kept while nothing can be written: the newest, in its order, within bounds."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from pie_control.durable import commits, writer
from pie_control.durable.commits import Backlog
from pie_control.durable.database import FILE
from pie_control.durable.inferlets import LINES, KeptLine
from pie_control.durable.state import State
from tests.helpers.guard import HANG_SECONDS


@pytest.mark.parametrize(
    ("error", "told"), [(sqlite3.OperationalError("disk full"), "disk full"), (MemoryError(), "MemoryError")]
)
def test_the_newest_lines_stand_after_a_time_without_writing(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
    fails = True

    def commit(*given: object) -> None:
        if fails:
            raise error
        commits.commit(*given)  # type: ignore[arg-type]

    state = State(tmp_path / "state", 1.0, 1 << 30)
    monkeypatch.setattr(writer, "commit", commit)
    number = state.inferlets.next_number()
    state.inferlets.launched(number, "alice", "p", "p", 0.0)
    for line in range(2 * LINES):
        state.inferlets.said(number, KeptLine(0.0, "log", f"{line}"))
        if line % LINES == LINES // 2:
            state.inferlets._writer.wait(HANG_SECONDS)  # these are tried, and fail
            assert told in state.trouble
    fails = False
    state.inferlets._writer.wait(HANG_SECONDS)
    assert [line.text for line in state.inferlets.lines(number)] == [f"{line}" for line in range(LINES, 2 * LINES)]
    state.close()


def test_what_is_too_much_for_memory_comes_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(commits, "MOST_KEPT", 10)
    state = State(tmp_path / "state", 1.0, 1 << 30)
    state.inferlets._writer.wait(HANG_SECONDS)
    state.inferlets._writer._database.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # such as a shell that somebody has left open
    for number in range(1, 101):
        state.inferlets.launched(number, "alice", "p", f"{number}", 0.0)
        if number % 20 == 0:
            state.inferlets._writer.wait(HANG_SECONDS)
            assert "locked" in state.trouble
    other.execute("ROLLBACK")
    state.inferlets._writer.wait(HANG_SECONDS)
    rows = other.execute("SELECT title FROM inferlets ORDER BY number").fetchall()
    assert [title for (title,) in rows] == [f"{number}" for number in range(1, 101)]
    other.close()
    state.close()


def test_what_is_put_behind_the_end_is_not_kept_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async def put(state: State) -> None:
        done = asyncio.Event()
        assert not state.inferlets._writer.put(("SELECT 1", ()), then=done.set)
        await asyncio.wait_for(done.wait(), HANG_SECONDS)

    state = State(tmp_path / "state", 1.0, 1 << 30)
    state.close()
    asyncio.run(put(state))
    assert not state.inferlets._writer.put(("SELECT 1", ()))


def test_what_waits_is_bounded_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "MOST_KEPT", 10)
    monkeypatch.setattr(commits, "MOST_KEPT_BYTES", 1000)
    backlog = Backlog()
    backlog.add((number, [("", (number,))]) for number in range(15))
    assert len(backlog.writes) == 15, "what was not tried yet is all there"
    backlog.bound()
    assert [values for _, values in backlog.writes] == [(number,) for number in range(5, 15)]
    assert backlog.left_to_journal == 4
    backlog.add((0, [("", ("x" * 400, number))]) for number in range(4))
    backlog.bound()
    assert [values[1] for _, values in backlog.writes] == [2, 3]
    backlog.clear()
    backlog.add([(0, [("", (b"y" * 999,))])])
    backlog.bound()
    assert len(backlog.writes) == 1
