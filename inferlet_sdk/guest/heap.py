"""Fills the holes in the heap of the interpreter's snapshot, so that instances allocate from its end.

What the build has freed lies in holes all over the snapshot. An instance that used them would copy a page of it for
each few objects. At the end of the heap new objects lie side by side, on pages that a rehearsal has made ready before
the launch. An instance that waits needs a fifth less memory, and a launch writes to half as many pages for the first
time.
"""

from __future__ import annotations

from collections.abc import Iterator

LARGEST, EXACT_FROM, STEP = 4 << 20, 4096, 16
"""Sizes of holes: from the first to the second in steps of a sixteenth, then in those of the allocator."""

_filling: list[bytes] = []


def fill() -> None:
    """Fills all holes, the largest first: until bytes of a size come from the end of the heap."""
    end = 0
    for size in _sizes():
        while True:
            one = bytes(size)
            if id(one) >= end:
                end = id(one)
                del one  # the end of the heap is where it was
                break
            _filling.append(one)
            del one  # before the next one is made


def _sizes() -> Iterator[int]:
    size = LARGEST
    while size > EXACT_FROM:
        yield size
        size -= size // 16
    yield from range(EXACT_FROM, 0, -STEP)
