"""Pages in the host's memory, to which the control layer can swap pages that are not needed at the moment.

Theory. On the device each page has one piece in each layer, and copying piece by piece would be far slower than the
bus. So compute gathers the pages of a swap into a staging area, where a page is one piece, as it is on the host. The
copy lane moves that piece, in runs of neighbouring host pages. Compute may overwrite pages as soon as they are staged,
so forwards do not wait for a swap out. Each direction has its staging area:

    swap out    compute: gather, once the copy before has left the area    lane: copy, once gathered
    swap in     lane: copy, once the scatter before has emptied the area   compute: scatter, once copied

The lane works in order, so a host page is complete before it is copied back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import index_tensor, upload
from ..errors import BatchError
from ..protocol import Array
from .copy_lane import CopyLane, Mark
from .pages import KvCache, lazy_zeros


@dataclass(frozen=True)
class _Run:
    """Neighbouring host pages and where they are in the staging area."""

    host: slice
    staged: slice


class HostPages:
    """Room for `num_pages` pages of `cache` on the host; at most `max_swap_pages` move at a time."""

    def __init__(self, cache: KvCache, num_pages: int, max_swap_pages: int, lane: CopyLane) -> None:
        self.cache = cache
        self.num_pages = num_pages
        self.max_swap_pages = max_swap_pages
        self._lane = lane
        self._pages = _host_zeros((num_pages, *_page_shape(cache)), cache.shape.dtype, cache.device)
        self._positions = np.zeros((num_pages, cache.shape.page_size), np.int32)
        self._outgoing, self._incoming = (
            lazy_zeros((max_swap_pages, *_page_shape(cache)), cache.shape.dtype, cache.device) for _ in range(2)
        )
        self._outgoing_free: Mark = None
        self._incoming_free: Mark = None

    def swap_out(self, pages: Array, host_pages: Array) -> None:
        """Copies pages to the host. Raises BatchError."""
        places, order = self._check("SwapOut", pages, host_pages, host_pages)
        self._positions[host_pages] = self.cache.page_positions[pages]
        self._lane.wait(self._outgoing_free)
        for layer in range(self.cache.shape.num_layers):
            self._outgoing[: len(order), layer] = self.cache.read_pages(layer, places)
        runs = tuple(_runs(host_pages[order]))
        self._outgoing_free = self._lane.run(lambda: self._to_host(runs), self._lane.mark())

    def swap_in(self, host_pages: Array, pages: Array) -> None:
        """Copies pages back to the device. Raises BatchError."""
        places, order = self._check("SwapIn", pages, host_pages, pages)
        self.cache.note_page_positions(pages, self._positions[host_pages])
        runs = tuple(_runs(host_pages[order]))
        self._lane.wait(self._lane.run(lambda: self._to_device(runs), self._incoming_free))
        for layer in range(self.cache.shape.num_layers):
            self.cache.write_pages(layer, places, self._incoming[: len(order), layer])
        self._incoming_free = self._lane.mark()

    def _check(self, what: str, pages: Array, host_pages: Array, targets: Array) -> tuple[Tensor, Array]:
        """Checks a swap. Returns the pages as an index on the device, sorted by host page, and the sort order."""
        if len(pages) != len(host_pages):
            raise BatchError(f"{what} names {len(pages)} pages and {len(host_pages)} host pages, not as many of both")
        if len(pages) > self.max_swap_pages:
            raise BatchError(f"{what} moves {len(pages)} pages; at most {self.max_swap_pages} move at a time")
        if len(np.unique(targets)) != len(targets):
            raise BatchError(f"{what} writes to a page twice")
        index_tensor(host_pages, self.num_pages, "host page")
        index = index_tensor(pages, self.cache.num_pages, "page")
        order = np.argsort(host_pages, kind="stable")
        return upload(index[order], self.cache.device), order

    def _to_host(self, runs: tuple[_Run, ...]) -> None:
        for run in runs:
            self._pages[run.host].copy_(self._outgoing[run.staged], non_blocking=True)

    def _to_device(self, runs: tuple[_Run, ...]) -> None:
        for run in runs:
            self._incoming[run.staged].copy_(self._pages[run.host], non_blocking=True)


def _page_shape(cache: KvCache) -> tuple[int, ...]:
    shape = cache.shape
    return shape.num_layers, 2 * shape.num_kv_heads, shape.page_size, shape.head_dim


def _host_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros on the host: pinned if a GPU copies from and to them; else they take memory when they are first written."""
    if device.type == "cuda":
        return torch.zeros(shape, dtype=dtype, pin_memory=True)
    return lazy_zeros(shape, dtype, torch.device("cpu"))


def _runs(host_pages: Array) -> Iterator[_Run]:
    """Runs of ascending page numbers; a page that occurs twice begins a new run."""
    starts = [0, *(np.flatnonzero(np.diff(host_pages) != 1) + 1).tolist(), len(host_pages)]
    for start, end in itertools.pairwise(starts if len(host_pages) else ()):
        first = int(host_pages[start])
        yield _Run(slice(first, first + end - start), slice(start, end))
