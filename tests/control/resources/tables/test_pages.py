"""PageTable against a model that looks at every slot."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.errors import InvalidState, NotFound
from pie_control.resources.intervals import join_intervals, take_intervals
from pie_control.resources.ranges import merge
from pie_control.resources.tables.addresses import INITIAL_CAPACITY
from pie_control.resources.tables.pages import PageTable
from pie_control.resources.tables.spans import MAX_SPANS

SIZE = 4


def slots_of(intervals: tuple[tuple[int, int], ...]) -> list[int]:
    return [slot for start, stop in intervals for slot in range(start, stop)]


class SlowTable:
    """The same state as a dictionary slot -> position."""

    def __init__(self) -> None:
        self.filled: dict[int, int] = {}

    def slots(self, ranges: list[tuple[int, int]]) -> list[int]:
        return [slot for first, last in ranges for slot in range(first * SIZE, last * SIZE)]

    def context(self, ranges: list[tuple[int, int]], largest: int) -> list[int]:
        return [slot for slot in self.slots(ranges) if self.filled.get(slot, largest) < largest]

    def free(self, ranges: list[tuple[int, int]]) -> list[int]:
        return [slot for slot in self.slots(ranges) if slot not in self.filled]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_contexts_and_free_slots_are_those_of_the_slow_table(seed: int) -> None:
    choice = random.Random(seed)
    table, slow = PageTable(SIZE), SlowTable()
    pages = table.allocate(8, 0)
    for _ in range(30):
        ranges = _some_ranges(choice, pages)
        operation = choice.choice([_append, _append, _append, _copy, _trim])
        operation(choice, table, slow, ranges)
        smallest = choice.randint(0, 12)
        largest = smallest + choice.randint(0, 3)
        seen = table.context(ranges, smallest, largest)
        assert slots_of(seen.intervals) == slow.context(ranges, largest)
        assert seen.tokens == len(slots_of(seen.intervals))
        positions = [slow.filled[slot] for slot in slots_of(seen.intervals)]
        assert seen.by_position == any(position >= smallest for position in positions)


def _some_ranges(choice: random.Random, pages: int) -> list[tuple[int, int]]:
    cuts = sorted(choice.sample(range(pages, pages + 9), choice.choice([2, 4])))
    ranges = list(zip(cuts[::2], cuts[1::2], strict=True))
    choice.shuffle(ranges)
    return ranges


def _append(choice: random.Random, table: PageTable, slow: SlowTable, ranges: list[tuple[int, int]]) -> None:
    free = slow.free(ranges)
    count = choice.randint(1, 9)
    if count > len(free):
        with pytest.raises(InvalidState, match=f"have {len(free)};"):
            table.free_slots(ranges, count)
        return
    intervals = table.free_slots(ranges, count)
    assert slots_of(intervals) == free[:count]
    start = choice.randint(0, 8)
    table.append(intervals, range(start, start + count), 1)
    slow.filled.update(zip(free[:count], range(start, start + count), strict=True))


def _copy(choice: random.Random, table: PageTable, slow: SlowTable, ranges: list[tuple[int, int]]) -> None:
    source = choice.sample(sorted(slow.filled), min(3, len(slow.filled)))
    target = choice.sample(slow.slots(ranges), min(len(source), len(slow.slots(ranges))))
    source = source[: len(target)]
    if not source:
        return
    read, written = ([(slot, slot + 1) for slot in slots] for slots in (source, target))
    assert all(table.all_filled([one]) for one in read)
    assert table.all_filled(read)
    assert [not table.none_filled([one]) for one in written] == [slot in slow.filled for slot in target]
    assert table.none_filled(written) is slow.filled.keys().isdisjoint(target)
    table.copy(read, written, merge((slot // SIZE, slot // SIZE + 1) for slot in target), 1)
    slow.filled.update(zip(target, [slow.filled[slot] for slot in source], strict=True))


def _trim(choice: random.Random, table: PageTable, slow: SlowTable, ranges: list[tuple[int, int]]) -> None:
    slots = slow.slots(ranges)
    keep = choice.randint(0, len(slots))
    dropped = set(slots[keep:]) & set(slow.filled)
    assert set(table.trim(ranges, keep)) == {slot // SIZE for slot in dropped}
    for slot in dropped:
        del slow.filled[slot]


def test_thousands_of_pages_that_stand_alone_make_no_spans() -> None:
    """Those of long ranges would be forgotten for them."""
    table = PageTable(SIZE)
    first = table.allocate(4 * MAX_SPANS, 0)
    table.append(((first * SIZE, (first + 3) * SIZE),), range(3 * SIZE), 1)
    assert table.context([(first, first + 3)], 50, 50).tokens == 3 * SIZE
    seen = table.context([(first + page, first + page + 1) for page in range(0, 4 * MAX_SPANS, 2)], 50, 50)
    assert (seen.intervals, seen.tokens) == (((0, SIZE), (2 * SIZE, 3 * SIZE)), 2 * SIZE)
    assert list(vars(vars(table)["_spans"])["_spans"]) == [first]


def test_a_page_of_somebody_else_is_not_found() -> None:
    table = PageTable(SIZE)
    table.allocate(2, 0)
    for ranges in ([(0, 3)], [(2, 3)], [(1000, 1001)]):
        with pytest.raises(NotFound, match="not allocated"):
            table.context(ranges, 5, 5)
        with pytest.raises(NotFound, match="not allocated"):
            table.free_slots(ranges, 100)


def test_a_page_given_back_is_invalid_at_once_and_its_address_free_later() -> None:
    table = PageTable(SIZE)
    first = table.allocate(INITIAL_CAPACITY, 0)
    table.append(((0, 5),), range(5), 1)
    table.disown([(first, first + 1)])
    with pytest.raises(NotFound):
        table.context([(first, first + 1)], 5, 5)
    assert table.owned == INITIAL_CAPACITY - 1
    assert table.allocate(1, 0) != first, "earlier commands may still name it"
    table.disown([(INITIAL_CAPACITY, INITIAL_CAPACITY + 1)])
    table.release([(first, first + 1)])
    for _ in range(INITIAL_CAPACITY):
        page = table.allocate(1, 0)
        if page == first:
            break
    assert page == first
    assert table.context([(first, first + 1)], 5, 5).tokens == 0, "what was there is gone"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=5), st.integers(0, 20), st.integers(0, 20))
def test_intervals_join_and_split_as_their_slots(pairs: list[tuple[int, int]], begin: int, end: int) -> None:
    intervals = [(start, start + length) for start, length in pairs]
    assert slots_of(join_intervals(intervals[:2], intervals[2:])) == slots_of(tuple(intervals))
    assert slots_of(take_intervals(intervals, begin, end)) == slots_of(tuple(intervals))[begin:end]
