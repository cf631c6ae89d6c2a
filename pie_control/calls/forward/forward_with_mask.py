"""`forward` with a mask: which tokens each query sees, in place of the rule by positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges
from pie_control.resources.tables.contexts import Context, Mask

from ..adapters import NO_ADAPTER
from ..kind import define
from . import forward


def issue(
    space: AddressSpace,
    queue: int,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    mask: Sequence[int],
) -> None:
    """`mask`: for each input in turn the number of its ranges, then first and length of each. Columns are the tokens of
    the context, hidden or not, then the inputs. Raises as `forward`, and InvalidArgument (mask)."""

    def see(count: int) -> Context:
        return _see(space, context, mask, count)

    forward.run(space, queue, context, input_embeds, output_pages, output_embeds, NO_ADAPTER, see)


def _see(space: AddressSpace, context: Sequence[int], mask: Sequence[int], count: int) -> Context:
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


CALL = define(__name__, issue)
