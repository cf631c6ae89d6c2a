from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.errors import Exhausted
from pie_control.resources.tables.addresses import INITIAL_CAPACITY, MOST_ADDRESSES, AddressAllocator


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_runs_never_overlap_and_there_are_as_many_as_are_said(operations: list[tuple[bool, int]]) -> None:
    addresses = AddressAllocator()
    held: list[tuple[int, int]] = []
    for release, count in operations:
        if release and held:
            first, length = held.pop(count % len(held))
            addresses.release([(first, first + length)])
        else:
            first = addresses.allocate(count)
            assert first + count <= addresses.capacity
            assert all(first + count <= other or first >= other + length for other, length in held)
            held.append((first, count))


def test_addresses_are_reused_before_the_table_grows() -> None:
    addresses = AddressAllocator()
    for _ in range(1000):
        first = addresses.allocate(INITIAL_CAPACITY)
        addresses.release([(first, first + INITIAL_CAPACITY)])
    assert addresses.capacity == INITIAL_CAPACITY


def test_a_freed_address_is_not_the_next_one_handed_out() -> None:
    addresses = AddressAllocator()
    first = addresses.allocate(1)
    addresses.release([(first, first + 1)])
    assert addresses.allocate(1) != first


def test_what_is_held_far_apart_does_not_make_the_table_grow_without_end() -> None:
    allocator = AddressAllocator()
    count = MOST_ADDRESSES // 8

    def hold_the_middle() -> int:
        first = allocator.allocate(count)
        allocator.release([(first, first + count // 2), (first + count // 2 + 1, first + count)])
        return first + count // 2

    with pytest.raises(Exhausted, match="too far apart"):
        deque(hold_the_middle() for _ in range(20))
    assert allocator.allocate(count // 4) < MOST_ADDRESSES


def test_giving_back_twice_is_noticed() -> None:
    addresses = AddressAllocator()
    first = addresses.allocate(3)
    addresses.release([(first + 1, first + 2)])
    with pytest.raises(AssertionError, match="twice"):
        addresses.release([(first, first + 3)])
