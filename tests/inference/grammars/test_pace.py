"""How many forced tokens it pays to run together, by a clock of the test's own."""

from __future__ import annotations

from pie_inference.grammars import pace
from pie_inference.grammars.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def worth(seconds: float, rows: int, pause: float = 0.0) -> int:
    """After many steps of so many seconds and rows, and a pause."""
    clock = Clock()
    one = Pace(clock)
    for _ in range(200):
        clock.now += seconds
        one.step(rows)
    if pause:
        clock.now += pause
        one.step(rows)
    return one.worth


def test_slow_steps_pay_for_few_tokens_and_quick_ones_for_many() -> None:
    assert worth(0.030, 1) == pace.LEAST
    assert worth(0.040, 32) == 4  # 1.25 ms each
    assert worth(0.005, 32) == 26
    assert worth(0.0, 32) == pace.MOST


def test_small_batches_after_large_ones_do_not_look_costly() -> None:
    clock = Clock()
    one = Pace(clock)
    for rows in [32] * 200 + [4] * 10:
        clock.now += 0.005
        one.step(rows)
    assert one.worth > 20
    for _ in range(200):
        clock.now += 0.005
        one.step(4)
    assert one.worth == 4


def test_nothing_is_assumed_before_a_step_but_the_usual() -> None:
    assert Pace(Clock()).worth == pace.AT_FIRST


def test_a_pause_says_nothing() -> None:
    assert worth(0.005, 32, pause=60.0) == 26
