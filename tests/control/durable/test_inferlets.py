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


def ended(state: State, tenant: str, size: int) -> None:
    """An inferlet of a tenant that counts so many bytes."""
    number = state.inferlets.next_number()
    state.inferlets.launched(number, tenant, "p", "p", 0.0)
    end = InferletRecord(number, tenant, "p", "p", 0, None, 0.0, "finished", 1e10, 0.1, "x" * (size - ROW_BYTES), None)
    state.inferlets.ended(end)


def test_what_is_too_much_goes_of_those_of_whom_most_is_kept(tmp_path: Path) -> None:
    state = State(tmp_path, 1e6, 1 << 30)
    for tenant in ("bob", "bob", "bob", *("alice", "eve") * 20):
        ended(state, tenant, 5000)
    state.close()
    again = State(tmp_path, 1e6, 100_000)
    again.inferlets._writer.wait(HANG_SECONDS)
    kept = again._reader.execute("SELECT tenant, count(*), min(number) FROM inferlets GROUP BY tenant")
    assert kept == [("alice", 8, 28), ("bob", 3, 1), ("eve", 8, 29)]
    again.close()


def test_the_bound_holds_while_a_server_runs(tmp_path: Path) -> None:
    state = State(tmp_path, 1e6, 100_000)
    for _ in range(100):
        state.inferlets.said(state.inferlets._next, KeptLine(0.0, "log", "x"))
        ended(state, "alice", 5000)
        state.inferlets._writer.wait(HANG_SECONDS)
    ((inferlets, size),) = state._reader.execute("SELECT count(*), sum(size) FROM inferlets")
    assert size <= 100_000 + 100_000 // 16 + 5000
    assert state._reader.execute("SELECT count(*) FROM lines") == [(inferlets,)]
    state.close()
