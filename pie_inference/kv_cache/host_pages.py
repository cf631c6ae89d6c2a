"""Room in the host's memory for pages that are not needed at the moment, and for the states that hang on them.

Theory. On the device each page has one piece in each layer, and copying piece by piece would be far slower than the
bus. So compute gathers the pages of a swap into a staging area, where a page is one piece, as it is on the host. The
copy lane moves that piece, in runs of neighbouring host pages. Compute may overwrite pages as soon as they are staged,
so forwards do not wait for a swap out. Each direction has its staging area:

    swap out    compute: gather, once the copy before has left the area    lane: copy, once gathered
    swap in     lane: copy, once the scatter before has emptied the area   compute: scatter, once copied

States of texts are moved in the same way, by areas of their own, in parts of what these hold.

The lane works in order, so a host page is complete before it is copied back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import index_tensor, upload
from ..errors import BatchError
from ..protocol import Array, SwapIn, SwapOut, check_indptr
from .copy_lane import CopyLane, Mark
from .pages import KvCache, lazy_zeros
from .sizing import fitting_swap_states

Fill = Callable[[slice, Tensor], object]
"""Moves some pieces of a swap between the device's pool and a part of a staging area."""


class HostPages:
    """Room for `num_pages` pages of `cache` on the host; at most `max_swap_pages` move at a time."""

    def __init__(self, cache: KvCache, num_pages: int, max_swap_pages: int, lane: CopyLane) -> None:
        self.cache = cache
        self.num_pages = num_pages
        self.max_swap_pages = max_swap_pages
        self._room = _Room(num_pages, _page_shape(cache), cache.shape.dtype, cache.device, max_swap_pages, lane)
        self._positions = np.zeros((num_pages, cache.shape.page_size), np.int32)

    def swap_out(self, pages: Array, host_pages: Array) -> None:
        """Copies pages to the host. Raises BatchError."""
        places, there = self._check("SwapOut", pages, host_pages, host_pages)
        self._positions[host_pages] = self.cache.page_positions[pages]

        def gather(part: slice, staged: Tensor) -> None:
            for layer in range(self.cache.shape.num_layers):
                staged[:, layer] = self.cache.read_pages(layer, places[part])

        self._room.take(there, gather)

    def swap_in(self, host_pages: Array, pages: Array) -> None:
        """Copies pages back to the device. Raises BatchError."""
        places, there = self._check("SwapIn", pages, host_pages, pages)
        self.cache.note_page_positions(pages, self._positions[host_pages])

        def scatter(part: slice, staged: Tensor) -> None:
            for layer in range(self.cache.shape.num_layers):
                self.cache.write_pages(layer, places[part], staged[:, layer])

        self._room.give(there, scatter)

    def _check(self, what: str, pages: Array, host_pages: Array, targets: Array) -> tuple[Tensor, Array]:
        """Checks a swap. Returns the pages as an index on the device, and the host pages, which are ascending."""
        if len(pages) != len(host_pages):
            raise BatchError(f"{what} names {len(pages)} pages and {len(host_pages)} host pages, not as many of both")
        if len(pages) > self.max_swap_pages:
            raise BatchError(f"{what} moves {len(pages)} pages; at most {self.max_swap_pages} move at a time")
        if len(np.unique(targets)) != len(targets):
            raise BatchError(f"{what} writes to a page twice")
        index_tensor(host_pages, self.num_pages, "host page")
        return _ascending(index_tensor(pages, self.cache.num_pages, "page"), host_pages, self.cache.device)


class HostStates:
    """Room for `slots` states of a pool [slots, ...] on the host; None: the model keeps none."""

    def __init__(self, pool: Tensor | None, slots: int, lane: CopyLane) -> None:
        self._pool, self.slots = pool, slots
        if pool is not None:
            most = fitting_swap_states(pool[0].nbytes, slots)
            self._room = _Room(slots, tuple(pool.shape[1:]), pool.dtype, pool.device, most, lane)

    def swap_out(self, batch: SwapOut) -> None:
        """Copies the states to the host that go there with pages. Raises BatchError, ValueError."""
        if (pool := self._pool_of(batch)) is not None:
            places, there = self._check(batch, pool)
            self._room.take(there, lambda part, staged: torch.index_select(pool, 0, places[part], out=staged))

    def swap_in(self, batch: SwapIn) -> None:
        """Copies states back to the device that come with pages. Raises BatchError, ValueError."""
        if (pool := self._pool_of(batch)) is not None:
            places, there = self._check(batch, pool)
            self._room.give(there, lambda part, staged: pool.index_copy_(0, places[part], staged))

    def _pool_of(self, batch: SwapOut | SwapIn) -> Tensor | None:
        """The pool of states, which the batch must name some of. Raises BatchError."""
        given = [each is not None for each in (batch.state_indptr, batch.states, batch.host_states)]
        if self._pool is None and any(given):
            raise BatchError("the model keeps no states")
        if self._pool is not None and not all(given):
            raise BatchError("the model keeps a state of each text: a swap must name those that hang on its pages")
        return self._pool

    def _check(self, batch: SwapOut | SwapIn, pool: Tensor) -> tuple[Tensor, Array]:
        """Checks what a batch names of the pool. Returns the states as an index on the device, and the host's slots for
        them, which are ascending."""
        indptr, states, host_states = batch.state_indptr, batch.states, batch.host_states
        assert indptr is not None
        assert states is not None
        assert host_states is not None
        for name, each in (("states", states), ("host_states", host_states)):
            check_indptr(indptr, len(batch.pages), len(each), f"state_indptr of {name}")
        targets = host_states if isinstance(batch, SwapOut) else states
        if len(np.unique(targets)) != len(targets):
            raise BatchError(f"{type(batch).__name__} writes to a state slot twice")
        index_tensor(host_states, self.slots, "host state")
        return _ascending(index_tensor(states, len(pool), "state slot"), host_states, pool.device)


class _Room:
    """Room for `count` pieces of one form on the host, and a staging area of `most` pieces for each direction."""

    def __init__(
        self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, most: int, lane: CopyLane
    ) -> None:
        self._most, self._lane = most, lane
        self._pieces = _host_zeros((count, *shape), dtype, device)
        self._outgoing, self._incoming = (lazy_zeros((most, *shape), dtype, device) for _ in range(2))
        self._outgoing_free: Mark = None
        self._incoming_free: Mark = None

    def take(self, places: Array, gather: Fill) -> None:
        """Copies pieces to the host, to ascending places."""
        for part in self._parts(places):
            staged = self._outgoing[: part.stop - part.start]
            self._lane.wait(self._outgoing_free)
            gather(part, staged)
            copy = partial(self._copy, tuple(_runs(places[part])), self._outgoing, out=True)
            self._outgoing_free = self._lane.run(copy, self._lane.mark())

    def give(self, places: Array, scatter: Fill) -> None:
        """Copies pieces from ascending places of the host."""
        for part in self._parts(places):
            copy = partial(self._copy, tuple(_runs(places[part])), self._incoming, out=False)
            self._lane.wait(self._lane.run(copy, self._incoming_free))
            scatter(part, self._incoming[: part.stop - part.start])
            self._incoming_free = self._lane.mark()

    def _parts(self, places: Array) -> Iterator[slice]:
        for first in range(0, len(places), max(1, self._most)):
            yield slice(first, min(first + self._most, len(places)))

    def _copy(self, runs: tuple[_Run, ...], area: Tensor, out: bool) -> None:
        for run in runs:
            here, there = area[run.staged], self._pieces[run.host]
            target, source = (there, here) if out else (here, there)
            target.copy_(source, non_blocking=True)


@dataclass(frozen=True)
class _Run:
    """Neighbouring places on the host and where they are in the staging area."""

    host: slice
    staged: slice


def _ascending(index: Tensor, host: Array, device: torch.device) -> tuple[Tensor, Array]:
    """An index, on the device, and the places on the host for it, both sorted by these."""
    order = np.argsort(host, kind="stable")
    return upload(index[order], device), host[order]


def _page_shape(cache: KvCache) -> tuple[int, ...]:
    shape = cache.shape
    return shape.num_layers, 2 * shape.num_kv_heads, shape.page_size, shape.head_dim


def _host_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros on the host: pinned if a GPU copies from and to them; else they take memory when they are first written."""
    if device.type == "cuda":
        return torch.zeros(shape, dtype=dtype, pin_memory=True)
    return lazy_zeros(shape, dtype, torch.device("cpu"))


def _runs(places: Array) -> Iterator[_Run]:
    """Runs of ascending places; one that occurs twice begins a new run."""
    starts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    for start, end in itertools.pairwise(starts if len(places) else ()):
        first = int(places[start])
        yield _Run(slice(first, first + end - start), slice(start, end))
