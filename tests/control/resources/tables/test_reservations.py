"""Reserving slots for decode runs, in pages that look as usual and in others."""

from __future__ import annotations

import random
from itertools import chain, starmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.errors import InvalidState
from pie_control.resources.tables.pages import NOT_OWNED, PageTable
from pie_control.resources.tables.reservations import Reservation, fill_reserved, reserve, unreserve, withhold
from pie_control.resources.tables.slots import EMPTY, RESERVED, UNBOUND, hidden, is_token

SIZE = 4
PAGES = 8


def _table(choice: random.Random) -> PageTable:
    """Pages with tokens, with holes, with hidden ones, without memory, sealed and given back."""
    table = PageTable(SIZE)
    table.allocate(PAGES, 0)
    for page in range(PAGES):
        slots = table.positions[page * SIZE : (page + 1) * SIZE]
        match choice.choice(["tokens", "tokens", "full", "holes", "hidden", "unbound", "unbound"]):
            case "tokens":
                slots[: choice.randrange(SIZE)] = page
            case "full":
                slots[:] = page
            case "holes":
                slots[1::2] = page
            case "hidden":
                slots[0] = hidden(slots[:1] * 0 + 3)[0]
            case "unbound":
                withhold(table, page, 1)
    table.summarize(range(PAGES))
    if choice.random() < 0.2:
        table.seal([(7, 8)])
    return table


def _ranges(choice: random.Random) -> list[tuple[int, int]]:
    cuts = sorted(choice.sample(range(PAGES + 1), choice.choice([2, 4])))
    ranges = list(zip(cuts[::2], cuts[1::2], strict=True))
    choice.shuffle(ranges)
    return ranges


def _each(ranges: list[tuple[int, int]], scale: int = 1) -> list[int]:
    return list(chain.from_iterable(range(first * scale, last * scale) for first, last in ranges))


def _withheld(table: PageTable) -> int:
    found = (table.positions < EMPTY) & ~is_token(table.positions)
    return int(found.sum())


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_runs_get_the_next_free_slots_and_give_back_what_they_did_not_fill(seed: int) -> None:
    choice = random.Random(seed)
    table = _table(choice)
    runs: list[tuple[Reservation, int]] = []
    for _ in range(4):
        ranges, count = _ranges(choice), choice.randint(1, 10)
        before = table.positions.tolist()
        free = [slot for slot in _each(ranges, SIZE) if before[slot] in (EMPTY, UNBOUND)]
        try:
            one = reserve(table, ranges, count)
        except InvalidState:
            assert len(free) < count or 7 in _each(ranges), "there are enough, and none is sealed"
            assert table.positions.tolist() == before
            continue
        assert list(one.slots) == list(chain.from_iterable(starmap(range, one.own))) == free[:count]
        assert list(one.unbound) == list(dict.fromkeys(slot // SIZE for slot in one.slots if before[slot] == UNBOUND))
        assert all(table.positions[slot] == RESERVED for slot in chain.from_iterable(starmap(range, one.withheld)))
        assert table.withheld == _withheld(table)
        filled = choice.randint(0, count)
        for place, slot in enumerate(one.slots[:filled]):
            fill_reserved(table, slot, 20 + place)
        runs.append((one, filled))
    choice.shuffle(runs)
    for one, filled in runs:
        unreserve(table, one, filled)
        reached = {slot // SIZE for slot in one.slots[:filled]}
        for slot in one.slots[filled:]:
            unbound = slot // SIZE in one.unbound and slot // SIZE not in reached
            assert table.positions[slot] == (UNBOUND if unbound else EMPTY)
        assert table.withheld == _withheld(table)
    assert not (table.positions == RESERVED).any()


def test_a_page_that_was_given_back_meanwhile_stays_so() -> None:
    table = PageTable(SIZE)
    table.allocate(3, 0)
    withhold(table, 1, 2)
    run = reserve(table, [(0, 3)], 9)
    assert run.withheld == ((0, 12),)
    table.disown([(1, 2)])
    fill_reserved(table, 4, 7)
    unreserve(table, run, 5)
    assert table.fill[:3] == [0, NOT_OWNED, 0]
    assert table.positions[:12].tolist() == [EMPTY] * 8 + [UNBOUND] * 4
    assert table.withheld == 4


def test_too_few_slots_are_refused() -> None:
    table = PageTable(SIZE)
    table.allocate(2, 0)
    with pytest.raises(InvalidState, match="a decode run of 10 steps needs 9 free slots, its pages have 8"):
        reserve(table, [(0, 2)], 9)
