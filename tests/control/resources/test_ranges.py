from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.errors import InvalidArgument
from pie_control.resources import ranges
from pie_control.resources.ranges import parse_ranges, total_length


def test_ranges_keep_their_order_and_empty_ones_are_dropped() -> None:
    assert parse_ranges([5, 2, 9, 0, 0, 3], "page") == ((5, 7), (0, 3))
    assert parse_ranges([], "page") == ()


@pytest.mark.parametrize("flat", [[1], [1, 2, 3], [-1, 2], [1, -2], [0, 3, 2, 2], [4, 1, 4, 1]])
def test_malformed_lists_are_refused(flat: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="page"):
        parse_ranges(flat, "page")


def test_ascending_ranges_that_touch_are_not_sorted_to_find_what_is_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []
    monkeypatch.setattr(ranges, "_refuse_overlap", lambda found, _: looked_at.append(found))
    assert parse_ranges([0, 2, 2, 3, 9, 1], "page") == ((0, 2), (2, 5), (9, 10))
    assert looked_at == []
    parse_ranges([2, 3, 4, 1], "page")
    assert looked_at == [[(2, 5), (4, 5)]]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=5))
def test_a_list_is_accepted_if_and_only_if_no_address_is_twice(pairs: list[tuple[int, int]]) -> None:
    addresses = [address for first, length in pairs for address in range(first, first + length)]
    flat = [number for pair in pairs for number in pair]
    if len(set(addresses)) < len(addresses):
        with pytest.raises(InvalidArgument, match="twice"):
            parse_ranges(flat, "page")
    else:
        found = parse_ranges(flat, "page")
        assert [address for first, last in found for address in range(first, last)] == addresses
        assert total_length(found) == len(addresses)
