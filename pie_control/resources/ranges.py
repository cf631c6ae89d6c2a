"""Flat lists of ranges, as they cross the host boundary: [first, length, first, length, ...]."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

from pie_control.errors import InvalidArgument
from pie_control.record import Int32

Range = tuple[Int32, Int32]
"""First address and the address behind the last."""
EVERYTHING: tuple[Range, ...] = ((0, sys.maxsize),)
"""All addresses."""


def parse_ranges(flat: Sequence[int], what: str) -> tuple[Range, ...]:
    """Non-empty, disjoint ranges (first, behind last) of a flat list, in its order. Empty ranges are dropped.

    `what` is a singular noun. Raises InvalidArgument for an odd number of items, a negative one, or an address named
    twice.
    """
    if len(flat) == 2:
        first, length = flat
        if length > 0 <= first:
            return ((first, first + length),)
    return _parse_many(flat, what) if flat else ()


def _parse_many(flat: Sequence[int], what: str) -> tuple[Range, ...]:
    if len(flat) % 2:
        raise InvalidArgument(f"a list of {what} ranges is first, length, first, length, ...; got {len(flat)} numbers")
    ranges = []
    end, ascends = 0, True
    for first, length in zip(flat[::2], flat[1::2], strict=True):
        if first < 0 or length < 0:
            raise InvalidArgument(f"{what} range ({first}, {length}): neither number may be negative")
        if length:
            ascends = ascends and first >= end
            end = first + length
            ranges.append((first, end))
    if not ascends:
        _refuse_overlap(ranges, what)
    return tuple(ranges)


def _refuse_overlap(ranges: Sequence[Range], what: str) -> None:
    ordered = sorted(ranges)
    for left, right in pairwise(ordered):
        if right[0] < left[1]:
            raise InvalidArgument(f"{what} {right[0]} is named twice; each {what} may stand in the list once")


def are_sound(*lists: Sequence[Range]) -> bool:
    """Whether the ranges of lists are some: from 0 on, and not empty."""
    for ranges in lists:
        for first, last in ranges:
            if not 0 <= first < last:
                return False
    return True


def total_length(ranges: Sequence[Range]) -> int:
    """Number of addresses in the ranges."""
    if len(ranges) == 1:
        return ranges[0][1] - ranges[0][0]
    return sum(last - first for first, last in ranges)


def overlap(ordered: Sequence[Range], others: Sequence[Range]) -> bool:
    """Whether an address is in both; `ordered` is ascending and disjoint."""
    for first, last in others:
        place = bisect_left(ordered, (last, last))  # of the first range at or behind the end of this one
        if place and ordered[place - 1][1] > first:
            return True
    return False


def merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Ascending, disjoint ranges of the addresses."""
    ordered = sorted(ranges)
    if len(ordered) < 2:
        return tuple(ordered)
    merged: list[Range] = []
    begin, end = ordered[0]
    for first, last in ordered:
        if first > end:
            merged.append((begin, end))
            begin, end = first, last
        elif last > end:
            end = last
    merged.append((begin, end))
    return tuple(merged)
