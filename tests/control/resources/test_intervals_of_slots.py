from __future__ import annotations

import random
from array import array
from itertools import chain, starmap

import pytest

from pie_control.calls.arrays import MANY_INTERVALS, append_slots
from pie_control.resources.intervals import slots_in


@pytest.mark.parametrize("count", [0, 1, 2, MANY_INTERVALS - 1, MANY_INTERVALS, 100])
def test_slots_of_few_and_many_intervals(count: int) -> None:
    choice, size = random.Random(count), 4
    starts = [choice.randrange(400) for _ in range(count)]
    intervals = [(start, start + choice.randint(1, 9)) for start in starts]
    slots = list(chain.from_iterable(starmap(range, intervals)))
    assert slots_in(intervals).tolist() == slots
    pages = array("i", choice.sample(range(1000), 110))
    into = array("i", [7])
    append_slots(intervals, pages, size, into)
    assert into.tolist() == [7, *(pages[slot // size] * size + slot % size for slot in slots)]
