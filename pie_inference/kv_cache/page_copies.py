"""Copies between slots of a layer.

Whole pages among them are faster to copy: a head's part of a page is one piece of memory. The copies go head by head,
as many heads at a time as fit a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import upload
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


class Move:
    """Moves rows of `width` numbers from place to place in layers, first those of some heads, then those of the next.

    `source` and `target` are the rows of the first head, int64 [M]; those of the next head are `step` further.
    """

    def __init__(
        self, source: Array, target: Array, step: int, heads: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._width, self._rows, self._shift = width, len(source), heads * step
        shifts = torch.arange(heads, device=device)[:, None] * step
        self._source, self._target = (
            (upload(torch.from_numpy(rows), device) + shifts).view(-1) for rows in (source, target)
        )
        self._staged = torch.empty(heads * len(source), width, dtype=dtype, device=device)

    def read(self, layer: Tensor, heads: int) -> None:
        """Reads the rows of a layer, of the next `heads` heads."""
        count = heads * self._rows
        rows = layer.view(-1, self._width)
        torch.index_select(rows, 0, self._source[:count], out=self._staged[:count])

    def staged(self, heads: int) -> Tensor:
        """What was read, [heads, M, width]; a view."""
        return self._staged[: heads * self._rows].view(heads, self._rows, self._width)

    def write(self, layer: Tensor, heads: int) -> None:
        """Writes what was read to the targets."""
        count = heads * self._rows
        layer.view(-1, self._width).index_copy_(0, self._target[:count], self._staged[:count])

    def go_on(self) -> None:
        """The heads behind these come next."""
        self._source += self._shift
        self._target += self._shift
