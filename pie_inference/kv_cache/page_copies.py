"""Finds whole pages among copies of slots. They are faster to copy: a head's part of a page is one piece of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..protocol import Array


@dataclass(frozen=True)
class Copies:
    """Copies from `source` to `target`: numbers of pages or of slots, [M] each."""

    source: Array
    target: Array


def split_copies(source: Array, target: Array, page_size: int) -> tuple[Copies, Copies]:
    """Splits copies of slots into copies of whole pages and copies of the remaining slots."""
    firsts = _whole_pages(source, target, page_size)
    if not len(firsts):
        return Copies(source[:0].astype(np.int64), target[:0].astype(np.int64)), Copies(source, target)
    whole = Copies(*(slots[firsts].astype(np.int64) // page_size for slots in (source, target)))
    left = np.ones(len(source), np.bool_)
    left[(firsts[:, None] + np.arange(page_size)).reshape(-1)] = False
    return whole, Copies(source[left], target[left])


def _whole_pages(source: Array, target: Array, page_size: int) -> Array:
    """The indices in the copies at which a whole page begins, with all its slots in order."""
    firsts = np.flatnonzero((source % page_size == 0) & (target % page_size == 0))
    firsts = firsts[firsts + page_size <= len(source)]
    steps = firsts[:, None] + np.arange(page_size)
    expected = np.arange(page_size)
    follow = (source[steps] - source[firsts, None] == expected) & (target[steps] - target[firsts, None] == expected)
    whole: Array = firsts[follow.all(1)]
    return whole
