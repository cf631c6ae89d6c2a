"""Masks of forwards: as guests give them, as commands have them, and as arrays of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges
from pie_control.resources.tables.contexts import Context, Mask
from pie_inference.protocol import Forward

from ..arrays import ends_of, join


def seen_through(space: AddressSpace, context: Sequence[int], mask: Sequence[int], count: int) -> Context:
    """What `count` inputs see through a mask, as `forward_with_mask` takes it. Raises InvalidArgument."""
    seen, shown = space.pages.all_tokens(parse_ranges(context, "context page"))
    columns = count + (seen.tokens if shown is None else len(shown))
    rows, begins, ends = _parse(mask, count, columns)
    if shown is not None:  # hidden tokens are no keys
        kept = np.concatenate(([0], np.cumsum(shown), seen.tokens + 1 + np.arange(count)))
        begins, ends = kept[begins], kept[ends]
    later = bool((ends > seen.tokens + rows + 1).any())
    some = ends > begins
    queries, first, last = np.stack((rows, begins, ends))[:, some].astype(np.int32)
    return Context(seen.intervals, seen.tokens, mask=Mask(queries, first, last, later))


def _parse(
    mask: Sequence[int], count: int, columns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Query, first column and the one behind the last, of each range."""
    pairs: list[int] = []
    counts: list[int] = []
    place = 0
    for query in range(count):
        if place >= len(mask) or mask[place] < 0 or place + 1 + 2 * mask[place] > len(mask):
            raise InvalidArgument(
                f"the mask ends within input {query} of {count}: it has the number of ranges of each input, then first "
                "and length of each of them"
            )
        counts.append(mask[place])
        pairs += mask[place + 1 : place + 1 + 2 * mask[place]]
        place += 1 + 2 * mask[place]
    if place < len(mask):
        raise InvalidArgument(f"the mask has {len(mask) - place} numbers behind those of the last of {count} inputs")
    rows = np.repeat(np.arange(count), counts)
    ranges = np.array(pairs, np.int64).reshape(-1, 2)
    firsts, lasts = ranges[:, 0], ranges[:, 0] + ranges[:, 1]
    if ranges.min(initial=0) < 0 or lasts.max(initial=0) > columns:
        wrong = (ranges < 0).any(1) | (lasts > columns)
        bad = int(wrong.argmax())
        raise InvalidArgument(
            f"range ({firsts[bad]}, {ranges[bad, 1]}) of input {rows[bad]} is not within the {columns} columns of the "
            f"mask: the {columns - count} tokens of the context, hidden or not, then the {count} inputs"
        )
    return rows, firsts, lasts


def masks(of: Mapping[int, Mask], count: int) -> dict[str, Any]:
    """Of those of `count` sequences that have one, by their places."""
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
