"""The futures of one inferlet."""

from __future__ import annotations

import pytest

from pie_control.errors import InvalidArgument, InvalidState, NotFound, QuotaExceeded, WorkerError
from pie_control.inferlets import futures
from pie_control.inferlets.futures import PENDING, FutureTable


def test_a_future_is_pending_then_done_then_taken() -> None:
    table = FutureTable(4)
    number = table.new()
    assert not table.done([number])
    assert table.done([number]) == []
    assert table.resolve(number, "value")
    assert table.done([number])
    assert table.done([number]) == [number]
    assert table.take(number, str) == "value"
    assert len(table) == 0


def test_taking_too_early_leaves_it() -> None:
    table = FutureTable(4)
    number = table.new()
    with pytest.raises(InvalidState, match="wait for it first"):
        table.take(number, str)
    assert not table.done([number])


def test_a_future_is_taken_once() -> None:
    table = FutureTable(4)
    number = table.new()
    table.resolve(number, 1)
    table.take(number, int)
    with pytest.raises(NotFound, match=f"no future {number}"):
        table.take(number, int)


def test_another_kind_is_refused_and_leaves_it() -> None:
    table = FutureTable(4)
    number = table.new()
    table.resolve(number, "text")
    with pytest.raises(InvalidArgument, match="holds a str, not a int"):
        table.take(number, int)
    assert table.take(number, str) == "text"


def test_an_error_is_raised_and_consumed() -> None:
    table = FutureTable(4)
    number = table.new()
    table.resolve(number, WorkerError("it died"))
    with pytest.raises(WorkerError, match="it died"):
        table.take(number, int)
    assert len(table) == 0


def test_done_keeps_the_order_and_counts_unknown_ones() -> None:
    table = FutureTable(8)
    first, second, third = (table.new() for _ in range(3))
    table.resolve(third, 3)
    table.resolve(first, 1)
    assert table.done([third, 999, second, first]) == [third, 999, first]


def test_a_cancelled_future_takes_no_value() -> None:
    table = FutureTable(4)
    pending, done = table.new(), table.new()
    table.resolve(done, "value")
    assert table.cancel(pending) is PENDING
    assert table.cancel(done) == "value"
    assert not table.resolve(pending, 1)
    with pytest.raises(NotFound):
        table.cancel(pending)


def test_a_future_has_one_value() -> None:
    table = FutureTable(4)
    number = table.new()
    assert table.resolve(number, 1)
    assert not table.resolve(number, 2)
    assert table.take(number, int) == 1


def test_the_table_is_bounded_and_room_comes_back() -> None:
    table = FutureTable(2)
    first, _ = table.new(), table.new()
    with pytest.raises(QuotaExceeded, match="2 futures are open"):
        table.new()
    table.forget(first)
    table.forget(first)
    assert table.new() not in (first, 0)


def test_numbers_stay_below_the_mark_of_token_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "LAST_FUTURE", 3)
    table = FutureTable(10)
    seen = []
    for _ in range(5):
        seen.append(table.new())
        table.forget(seen[-1])
    assert seen == [1, 2, 3, 1, 2]


def test_a_number_still_open_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "LAST_FUTURE", 3)
    table = FutureTable(3)
    kept = table.new()
    table.forget(table.new())
    table.forget(table.new())
    assert table.new() != kept


def test_sizes_of_large_values_are_counted_until_they_are_gone() -> None:
    table = FutureTable(10)
    taken, cancelled, refused, failed, small = (table.new(size) for size in (1, 20, 300, 4000, 0))
    assert table.bytes == 4321
    table.resolve(small, ())
    table.take(small, tuple)
    table.forget(refused)
    table.cancel(cancelled)
    assert table.bytes == 4001
    table.resolve(taken, ())
    with pytest.raises(InvalidArgument):
        table.take(taken, int)
    assert table.bytes == 4001, "it is still there"
    table.take(taken, tuple)
    table.resolve(failed, WorkerError("it failed"))
    with pytest.raises(WorkerError):
        table.take(failed, tuple)
    assert table.bytes == 0
