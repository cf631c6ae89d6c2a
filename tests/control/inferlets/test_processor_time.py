"""The budget of processor time: who computes ends, who mostly waits lives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pie_control.inferlets.processor_time import OF_CHILDREN, ProcessorTime


def test_one_that_computes_ends_however_long_it_takes() -> None:
    time, now = ProcessorTime(10.0, refill=0.5), 0.0
    for _ in range(200):
        time.turn_begins(now)
        time.charge(0.1)
        now += 5.0  # others had the processor meanwhile
        if time.is_exceeded:
            break
    assert 10.0 < time.used < 10.2


def test_one_that_waits_gets_its_time_back() -> None:
    time, now = ProcessorTime(1.0, refill=0.1), 0.0
    for _ in range(1000):
        time.turn_begins(now)
        time.charge(0.9)
        time.waits(now)
        now += 9.0
        assert not time.is_exceeded
    assert time.used > 800


def test_no_more_comes_back_than_was_spent() -> None:
    time = ProcessorTime(1.0, refill=0.1)
    time.charge(0.5)
    time.waits(0.0)
    time.turn_begins(1e6)
    assert time.spent == 0.0
    time.charge(1.5)
    assert time.is_exceeded


def test_without_refill_it_is_a_budget_for_life() -> None:
    time = ProcessorTime(1.0, refill=0.0)
    for hour in range(3):
        time.turn_begins(hour * 3600.0)
        time.charge(0.4)
        time.waits(hour * 3600.0)
    assert time.is_exceeded


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 20)), max_size=30), st.floats(0, 1))
def test_one_below_the_rate_never_ends(turns: list[tuple[float, float]], refill: float) -> None:
    time, now = ProcessorTime(2.5, refill), 0.0  # one turn may take 2
    for seconds, wait in turns:
        time.turn_begins(now)
        time.charge(min(seconds, refill * wait))
        time.waits(now)
        now += wait
        assert not time.is_exceeded


def test_what_children_use_comes_out_of_the_budget_of_those_above() -> None:
    root = ProcessorTime(10.0, 0.5)
    child = ProcessorTime(10.0, 0.5, root)
    grandchild = ProcessorTime(2.0, 0.5, child)
    root.charge(3.0)
    child.charge(3.0)
    grandchild.charge(1.5)
    assert (root.spent, child.spent, grandchild.spent) == (7.5, 4.5, 1.5)
    assert (root.used, child.used) == (3.0, 3.0)
    grandchild.charge(1.0)
    assert (grandchild.is_exceeded, child.is_exceeded, root.is_exceeded) == (True, False, False)


def test_children_exceed_what_is_left_and_their_parent_does_not() -> None:
    root = ProcessorTime(10.0, 0.5)
    child, other = ProcessorTime(10.0, 0.5, root), ProcessorTime(10.0, 0.5, root)
    child.charge(7.0)
    other.charge(7.0)
    assert root.spent == 10.0 * OF_CHILDREN
    assert (child.is_exceeded, other.is_exceeded, root.is_exceeded) == (True, True, False)
    root.waits(100.0)
    other.turn_begins(104.0)  # two seconds came back to the root meanwhile
    assert (root.spent, other.is_exceeded) == (6.75, False)
    other.turn_begins(106.0)
    assert root.spent == 5.75
    root.turn_begins(106.0)
    assert root.spent == 5.75
    root.charge(4.5)
    child.charge(1.0)
    assert (root.spent, root.is_exceeded) == (10.25, True)


def test_the_turn_that_goes_on_counts() -> None:
    time = ProcessorTime(1.0, 0.1)
    time.charge(0.25)
    assert time.spent_at(7.0) == 0.25  # no turn goes on
    time.turn_begins(100.0, processor=7.0)
    assert time.spent_at(7.5) == 0.75
    assert time.turn_ends(7.75) == 0.75
    assert time.spent_at(9.0) == time.spent == time.used == 1.0
