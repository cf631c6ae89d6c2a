"""What is kept of inferlets that ended: how much of it, and how that is counted."""

from __future__ import annotations

from pie_control.durable.inferlets import LINE_CHARACTERS, KeptLine, LineBuffer


def test_a_long_line_is_cut_before_it_waits_for_a_commit() -> None:
    lines = LineBuffer()
    lines.add(1, KeptLine(0.0, "log", "x" * 1_000_000))
    ((_, line),) = lines._waiting[1]
    assert len(line.text) == LINE_CHARACTERS
