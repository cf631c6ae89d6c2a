"""What is kept of inferlets that ended: how much of it, and how that is counted."""

from __future__ import annotations

from pathlib import Path

from pie_control.durable.inferlets import LINE_CHARACTERS, ROW_BYTES, InferletRecord, KeptLine, LineBuffer
from pie_control.durable.state import State
from tests.helpers.guard import HANG_SECONDS


def test_a_long_line_is_cut_before_it_waits_for_a_commit() -> None:
    lines = LineBuffer()
    lines.add(1, KeptLine(0.0, "log", "x" * 1_000_000))
    ((_, line),) = lines._waiting[1]
    assert len(line.text) == LINE_CHARACTERS


def test_bytes_are_counted_and_those_of_what_is_lost(tmp_path: Path) -> None:
    state = State(tmp_path, 1e6, 1 << 30)
    for _ in range(2):
        number = state.inferlets.next_number()
        state.inferlets.launched(number, "alice", "p", "p", 0.0)
        for _ in range(10):
            state.inferlets.said(number, KeptLine(0.0, "log", "界" * 100))
    state.inferlets.ended(InferletRecord(1, "alice", "p", "p", 0, None, 0.0, "finished", 1.0, 0.1, "é", "界"))
    state.close()
    again = State(tmp_path, 1e6, 1 << 30)
    rows = again._reader.execute("SELECT status, size FROM inferlets ORDER BY number")
    assert rows == [("finished", ROW_BYTES + 3000 + 5), ("lost", ROW_BYTES + 3000)]
    again.inferlets._writer.wait(HANG_SECONDS)
    again.close()
