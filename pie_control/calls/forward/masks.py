"""Masks of forwards: as guests give them, as commands have them, and as arrays of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, compress, repeat
from operator import add, ge, sub
from typing import Any, NoReturn

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges
from pie_control.resources.tables.contexts import Context, Mask
from pie_inference.protocol import Forward

from ..arrays import as_int32, ends_of, join


def seen_through(space: AddressSpace, context: Sequence[int], mask: Sequence[int], count: int) -> Context:
    """What `count` inputs see through a mask, as `forward` takes it. Raises InvalidArgument."""
    seen, shown = space.pages.all_tokens(parse_ranges(context, "context page"))
    columns = count + (seen.tokens if shown is None else len(shown))
    rows, begins, ends = _parse(mask, count, columns)
    if shown is not None:  # hidden tokens are no keys
        kept = np.concatenate(([0], np.cumsum(shown), seen.tokens + 1 + np.arange(count)))
        begins, ends = kept[begins].tolist(), kept[ends].tolist()
    if any(map(ge, begins, ends)):  # a range that has no key
        some = [begin < end for begin, end in zip(begins, ends, strict=True)]
        rows, begins, ends = (list(compress(column, some)) for column in (rows, begins, ends))
    later = max(map(sub, ends, rows), default=0) > seen.tokens + 1
    return Context(seen.intervals, seen.tokens, mask=Mask(as_int32(rows), as_int32(begins), as_int32(ends), later))


def _parse(mask: Sequence[int], count: int, columns: int) -> tuple[list[int], list[int], list[int]]:
    """Query, first column and the one behind the last, of each range."""
    counts: list[int] = []
    pairs: list[int] = []
    place = 0
    size = len(mask)
    for query in range(count):
        ranges = mask[place] if place < size else -1
        behind = place + 1 + 2 * ranges
        if ranges < 0 or behind > size:
            raise InvalidArgument(
                f"the mask ends within input {query} of {count}: it has the number of ranges of each input, then first "
                "and length of each of them"
            )
        counts.append(ranges)
        pairs += mask[place + 1 : behind]
        place = behind
    if place < len(mask):
        raise InvalidArgument(f"the mask has {len(mask) - place} numbers behind those of the last of {count} inputs")
    rows = list(chain.from_iterable(map(repeat, range(count), counts)))
    begins, lengths = pairs[::2], pairs[1::2]
    ends = list(map(add, begins, lengths))
    if min(begins, default=0) < 0 or min(lengths, default=0) < 0 or max(ends, default=0) > columns:
        _refuse_range(rows, begins, lengths, count, columns)
    return rows, begins, ends


def _refuse_range(rows: list[int], begins: list[int], lengths: list[int], count: int, columns: int) -> NoReturn:
    row, first, length = next(
        (row, first, length)
        for row, first, length in zip(rows, begins, lengths, strict=True)
        if first < 0 or length < 0 or first + length > columns
    )
    raise InvalidArgument(
        f"range ({first}, {length}) of input {row} is not within the {columns} columns of the mask: the "
        f"{columns - count} tokens of the context, hidden or not, then the {count} inputs"
    )


def masks(of: Mapping[int, Mask], count: int) -> dict[str, Any]:
    """The fields of a batch for the masks of those of `count` sequences that have one, by their places."""
    lengths = [len(of[n].rows) if n in of else 0 for n in range(count)]
    ordered = [of[n] for n in sorted(of)]
    return {
        "masked": np.array([n in of for n in range(count)], np.bool_),
        "range_indptr": ends_of(lengths),
        "range_rows": np.concatenate([one.rows for one in ordered]),
        "range_begins": np.concatenate([one.begins for one in ordered]),
        "range_ends": np.concatenate([one.ends for one in ordered]),
    }


def more_without_masks(batch: Forward, count: int) -> dict[str, Any]:
    """The arrays of a batch, with further sequences that have none."""
    if batch.masked is None or batch.range_indptr is None:
        return {}
    ends = np.full(count, batch.range_indptr[-1], np.int32)
    return {
        "masked": join(batch.masked, np.zeros(count, np.bool_)),
        "range_indptr": join(batch.range_indptr, ends),
        "range_rows": batch.range_rows,
        "range_begins": batch.range_begins,
        "range_ends": batch.range_ends,
    }
