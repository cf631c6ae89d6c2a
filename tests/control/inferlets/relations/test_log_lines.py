"""Log lines on their way to the control process, which may not keep up."""

from __future__ import annotations

from pie_control.inferlets.events import LogLine
from pie_control.inferlets.relations.log_lines import (
    ALWAYS_LINES,
    ALWAYS_SENT,
    LINES_PER_SECOND,
    MOST_LINES,
    MOST_UNSENT,
    LogLines,
)

LINE = "x" * 100_000


class Control:
    """What it has not taken."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self.unsent = 0
        self.now = 0.0
        say = lambda number, line: self.said.append((number, line.text))  # noqa: E731
        self.lines = LogLines(say, lambda: self.unsent, lambda: self.now)

    def add(self, number: int, text: str) -> None:
        self.lines.add(number, LogLine(inferlet=f"i{number}", time=0.0, stream="log", text=text))


def test_lines_beyond_a_bound_are_left_out_until_control_has_taken_some() -> None:
    control = Control()
    for _ in range(1000):
        control.add(1, LINE)
        if len(control.said) == 10:  # they are sent, and nobody takes them
            control.unsent += 10 * len(LINE)
            control.lines.sent()
    assert 10 < len(control.said) <= MOST_UNSENT // len(LINE)
    left_out = 1000 - len(control.said)
    control.unsent = 0
    control.lines.sent()
    control.add(1, "later")
    assert [text for _, text in control.said[-2:]][1] == "later"
    assert control.said[-2][1].startswith(f"{left_out} lines are left out here")


def test_an_end_tells_what_was_left_out() -> None:
    control = Control()
    control.unsent = MOST_UNSENT
    control.add(1, LINE)
    assert control.said == []
    control.lines.ended(1)
    assert [text[:5] for _, text in control.said] == ["1 lin"]


def test_a_line_of_another_one_still_goes() -> None:
    control = Control()
    control.unsent = MOST_UNSENT
    for _ in range(1000):
        control.add(2, "a line of a program that logs little" * 10)
    size = sum(len(text) for number, text in control.said if number == 2)
    assert ALWAYS_SENT / 2 < size <= ALWAYS_SENT


def test_lines_come_no_faster_than_control_can_take_them_however_short_they_are() -> None:
    control = Control()
    for _ in range(50_000):
        control.add(1, "")
    assert len(control.said) == MOST_LINES + ALWAYS_LINES
    for _ in range(2 * ALWAYS_LINES):
        control.add(2, "of another one")
    assert len(control.said) == MOST_LINES + 2 * ALWAYS_LINES
    control.lines.sent()
    control.now = MOST_LINES / 2 / LINES_PER_SECOND - 0.01
    control.add(1, "")
    assert len(control.said) == MOST_LINES + 2 * ALWAYS_LINES
    control.now += 0.02
    for _ in range(50_000):
        control.add(1, "")
    assert MOST_LINES / 2 < len(control.said) - MOST_LINES - 2 * ALWAYS_LINES < MOST_LINES / 2 + 2 * ALWAYS_LINES
    assert control.said[MOST_LINES + 2 * ALWAYS_LINES][1].startswith("39937 lines are left out here")
