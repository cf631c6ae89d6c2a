"""Random attention problems over pages, and their dense float64 solution. They test every attention backend.

`CASES` names problems. `Problem(case, dtype)` makes one: a cache with contents, a `Forward` batch and the vectors of
each layer. `run(problem, backend, device)` solves it with a backend; `expected` solves it without pages, ragged arrays
or `attention.layout`. It needs only numpy, torch and this package, so that other machines can use it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pie_inference.attention.interface import AttentionBackend, AttentionSpec, PlanWithSinks
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.protocol import Forward

from .worker_batches import is_dense, runs_of

MakeBackend = Callable[[KvCache, int, Sequence[AttentionSpec]], AttentionBackend]
"""Makes a backend from a cache, the number of query heads and a spec for each layer."""

Layout = Literal["dense", "holes", "scattered"]
Mask = Literal["random", "blind", "own"]

UNSEEN = float("nan")
"""The content of slots that no query may see: whatever a former owner may have left there."""


@dataclass(frozen=True)
class Request:
    """One sequence of a batch; its queries belong to its last keys.

    Layouts: "dense" fills pages in order, "holes" leaves slots out, "scattered" takes single slots in any order.
    Masks: "random"; "blind": some queries see no key; "own": each query sees only itself.
    """

    queries: int
    keys: int
    layout: Layout = "dense"
    mask: Mask | None = None
    shares: int | None = None  # request whose full pages are also the first pages of this one; both are dense


@dataclass(frozen=True)
class Case:
    requests: tuple[Request, ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    page_size: int = 16
    specs: tuple[AttentionSpec, ...] = (AttentionSpec(scale=32**-0.5),)  # of each layer
    seed: int = 0


@dataclass(frozen=True)
class Sequence_:
    """The slots of a sequence's keys, in order, and the keys that each query may see, apart from the window."""

    slots: np.ndarray
    num_queries: int
    visible: np.ndarray  # bool [queries, keys]
    masked: bool


def causal(queries: int, keys: int) -> np.ndarray:
    return np.tril(np.ones((queries, keys), bool), keys - queries)


def _mask(rng: np.random.Generator, request: Request) -> np.ndarray:
    if request.mask == "own":
        return np.eye(request.queries, request.keys, request.keys - request.queries, dtype=bool)
    mask: np.ndarray = rng.random((request.queries, request.keys)) < 0.4
    mask[:, -request.queries :] |= np.eye(request.queries, dtype=bool)
    if request.mask == "blind":
        mask[rng.permutation(request.queries)[: request.queries // 3 + 1]] = False
    return mask


class _Pages:
    """Hands out pages in random order. Left-over slots of a page stay unused. Page 0 is never used."""

    def __init__(self, rng: np.random.Generator, requests: Sequence[Request], page_size: int) -> None:
        self.page_size = page_size
        self._rng = rng
        counts = [-(-request.keys // page_size) * (1 if request.layout == "dense" else 2) for request in requests]
        self.num_pages = 2 + sum(counts)
        self._free = list(1 + rng.permutation(self.num_pages - 1))

    def dense(self, count: int) -> np.ndarray:
        pages = [self._free.pop() for _ in range(-(-count // self.page_size))]
        return self._slots(pages)[:count]

    def holes(self, count: int) -> np.ndarray:
        """A random half of the slots of some pages, in order within each page."""
        slots = self._slots([self._free.pop() for _ in range(2 * -(-count // self.page_size))])
        return slots[np.sort(self._rng.permutation(len(slots))[:count])]

    def scattered(self, count: int) -> np.ndarray:
        return self._rng.permutation(self.holes(count))

    def _slots(self, pages: Sequence[int]) -> np.ndarray:
        return (np.array(pages, np.int64).reshape(-1, 1) * self.page_size + np.arange(self.page_size)).reshape(-1)


class Problem:
    """A case with random contents. All vectors are rounded to `dtype` before the solution is computed from them."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case, self.dtype = case, dtype
        rng = np.random.default_rng(case.seed)
        pages = _Pages(rng, case.requests, case.page_size)
        self.num_pages = pages.num_pages
        self.sequences = self._place(rng, pages)
        self.new_slots = np.concatenate([s.slots[len(s.slots) - s.num_queries :] for s in self.sequences])
        self.positions = self._positions(rng)
        self.batch = self._batch()
        generator = torch.Generator().manual_seed(case.seed)
        self._make_vectors(generator)

    @property
    def shape(self) -> KvShape:
        case = self.case
        return KvShape(len(case.specs), case.num_kv_heads, case.head_dim, case.page_size, self.dtype)

    def _place(self, rng: np.random.Generator, pages: _Pages) -> list[Sequence_]:
        placed: list[Sequence_] = []
        for request in self.case.requests:
            shared = np.zeros(0, np.int64)
            if request.shares is not None:
                # only keys that are old for both
                other = self.case.requests[request.shares]
                most = min(other.keys - other.queries, request.keys - request.queries)
                shared = placed[request.shares].slots[: most // self.case.page_size * self.case.page_size]
            own = getattr(pages, request.layout)(request.keys - len(shared))
            masked = request.mask is not None
            visible = _mask(rng, request) if masked else causal(request.queries, request.keys)
            placed.append(Sequence_(np.concatenate((shared, own)), request.queries, visible, masked))
        return placed

    def _positions(self, rng: np.random.Generator) -> np.ndarray:
        """Positions of all slots, int32 [slots]: increasing along dense sequences, with gaps at holes, else random."""
        positions = rng.integers(0, 1000, self.num_pages * self.case.page_size)
        for request, sequence in zip(self.case.requests, self.sequences, strict=True):
            count = len(sequence.slots)
            if request.layout == "dense":
                positions[sequence.slots] = np.arange(count)
            elif request.layout == "holes":
                positions[sequence.slots] = np.sort(rng.permutation(2 * count)[:count])
        return positions.astype(np.int32)

    def _batch(self) -> Forward:
        runs = [runs_of(sequence.slots.tolist(), self.case.page_size) for sequence in self.sequences]
        flat = np.array([run for part in runs for run in part], np.int32).reshape(-1, 3)
        packed = [
            np.packbits(s.visible, bitorder="little") if s.masked else np.zeros(0, np.uint8) for s in self.sequences
        ]
        masked = any(sequence.masked for sequence in self.sequences)
        rows = np.arange(len(self.new_slots), dtype=np.int32)
        return Forward(
            q_indptr=_indptr([sequence.num_queries for sequence in self.sequences]),
            q_embeds=rows,
            q_positions=self.positions[self.new_slots],
            q_slots=self.new_slots.astype(np.int32),
            kv_indptr=_indptr([len(part) for part in runs]),
            kv_pages=flat[:, 0].copy(),
            kv_begins=flat[:, 1].copy(),
            kv_ends=flat[:, 2].copy(),
            dense=np.array([is_dense(part, self.case.page_size) for part in runs]),
            out_rows=rows,
            out_embeds=rows,
            mask_indptr=_indptr([len(bits) for bits in packed]).astype(np.int64) if masked else None,
            mask_bits=np.concatenate(packed) if masked else None,
        )

    def _make_vectors(self, generator: torch.Generator) -> None:
        """Makes, for each layer, `cached` [slots, 2 * kv_heads, head_dim] and `rows` [T, heads + 2 * kv_heads,
        head_dim], the queries, keys and values of the batch as a model computes them."""
        case, layers = self.case, len(self.case.specs)
        slots, width = self.num_pages * case.page_size, 2 * case.num_kv_heads
        cached = torch.randn(layers, slots, width, case.head_dim, generator=generator)
        old = np.zeros(slots, bool)
        old[np.concatenate([sequence.slots for sequence in self.sequences])] = True
        old[self.new_slots] = False
        cached[:, torch.from_numpy(~old)] = UNSEEN
        self.cached = cached.to(self.dtype)
        rows = torch.randn(layers, len(self.new_slots), case.num_heads + width, case.head_dim, generator=generator)
        rows[:, :, : case.num_heads] *= 2  # far from uniform attention
        self.rows = rows.to(self.dtype)
        self.sinks = torch.randn(layers, case.num_heads, generator=generator) * 3

    def expected_cache(self, layer: int) -> Tensor:
        """The cache [slots, 2 * kv_heads, head_dim] of a layer once the batch is written."""
        cached = self.cached[layer].clone()
        cached[torch.from_numpy(self.new_slots)] = self.rows[layer, :, self.case.num_heads :]
        return cached

    def expected(self, layer: int) -> Tensor:
        """The solution of a layer, float64 [T, num_heads * head_dim]."""
        keys, values = self.expected_cache(layer).double().chunk(2, 1)
        queries = self.rows[layer, :, : self.case.num_heads].double()
        parts = torch.split(queries, [sequence.num_queries for sequence in self.sequences])
        solved = [
            self._attend(layer, sequence, part, keys[sequence.slots], values[sequence.slots])
            for sequence, part in zip(self.sequences, parts, strict=True)
        ]
        return torch.cat(solved).flatten(1)

    def _attend(self, layer: int, sequence: Sequence_, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        spec = self.case.specs[layer]
        group = self.case.num_heads // self.case.num_kv_heads
        keys, values = (side.repeat_interleave(group, 1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        scores.masked_fill_(torch.from_numpy(~self._visible(spec, sequence)), -torch.inf)
        if spec.sinks:
            sinks = self.sinks[layer].double().view(-1, 1, 1).expand(-1, scores.shape[1], -1)
            weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1).nan_to_num(0.0)  # all minus infinity: a query that sees no key
        return torch.einsum("hqk,khd->qhd", weights, values)

    def _visible(self, spec: AttentionSpec, sequence: Sequence_) -> np.ndarray:
        if spec.window is None:
            return sequence.visible
        positions = self.positions[sequence.slots].astype(np.int64)
        own = positions[len(positions) - sequence.num_queries :]
        inside: np.ndarray = positions > own[:, None] - spec.window
        seen: np.ndarray = sequence.visible & inside
        return seen


def _indptr(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def filled_cache(problem: Problem, device: torch.device) -> KvCache:
    """The cache as earlier batches left it."""
    cache = KvCache(problem.shape, problem.num_pages, device)
    every = cache.locate(np.arange(problem.num_pages * problem.case.page_size, dtype=np.int32))
    for layer, contents in enumerate(problem.cached):
        cache.write(layer, every, contents.to(device))
        cache.layer(layer)[-1] = UNSEEN  # the page of the scratch slot
    cache.positions[:] = problem.positions
    cache.positions[problem.new_slots] = -1000  # the position of an earlier owner
    return cache


@dataclass(frozen=True)
class Solution:
    outputs: list[Tensor]  # of each layer, [T, num_heads * head_dim]
    cache: KvCache = field(repr=False)


def run(problem: Problem, make_backend: MakeBackend, device: torch.device) -> Solution:
    """Solves a problem as a model would: one plan, then layer by layer, with queries and keys as views of one
    tensor."""
    cache = filled_cache(problem, device)
    backend = make_backend(cache, problem.case.num_heads, problem.case.specs)
    plan = backend.plan(problem.batch)
    outputs = []
    for layer, rows in enumerate(problem.rows):
        own = rows.to(device, copy=True)
        heads = problem.case.num_heads
        if problem.case.specs[layer].sinks:
            assert isinstance(plan, PlanWithSinks)
            outputs.append(plan.attend_with_sinks(layer, own[:, :heads], own[:, heads:], problem.sinks[layer]))
        else:
            outputs.append(plan.attend(layer, own[:, :heads], own[:, heads:]))
    return Solution(outputs, cache)


def assert_solves(problem: Problem, make_backend: MakeBackend, device: torch.device) -> None:
    """Solves a problem and checks everything: outputs, the cache's contents and its positions."""
    solution = run(problem, make_backend, device)
    every = np.arange(problem.num_pages * problem.case.page_size, dtype=np.int32)
    for layer, output in enumerate(solution.outputs):
        assert_near(output, problem.expected(layer))
        slots = solution.cache.locate(every)
        assert_same(solution.cache.read(layer, slots).cpu(), problem.expected_cache(layer))
    np.testing.assert_array_equal(solution.cache.positions, problem.positions)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Checks that two tensors hold the same numbers, and NaN in the same places."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Checks that `actual` is near: in float32 within a few roundings; in bfloat16 within the loss of rounding queries,
    scores, weights and results."""
    exact = actual.dtype == torch.float32
    actual = actual.detach().cpu().double()
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all()
    error = root_mean_square(actual - expected) / max(root_mean_square(expected), 1e-3)
    assert error <= (4e-6 if exact else 1.2e-2), error
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5 if exact else 8e-2)


def root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def _decode(*keys: int) -> tuple[Request, ...]:
    return tuple(Request(1, count) for count in keys)


_MIXED = (
    Request(1, 37),
    Request(9, 40),
    Request(70, 70),
    Request(1, 150),
    Request(33, 90, "holes"),
    Request(1, 45, "scattered"),
    Request(1, 1),
    Request(6, 60, mask="random"),
    Request(1, 50, shares=3),
)
_MASKED = (
    Request(5, 30, mask="random"),
    Request(5, 30, mask="blind"),
    Request(1, 20, mask="blind"),
    Request(70, 130, "holes", mask="random"),
    Request(80, 80, mask="own"),
    Request(20, 33, "scattered", mask="blind"),
    Request(3, 40),
)
_FORKS = (
    Request(1, 700),
    Request(1, 650, shares=0),
    Request(1, 20),
    Request(1, 699, shares=1),  # of 640 keys with two others
    Request(9, 640, shares=0),
    Request(1, 400, shares=0),
    Request(1, 300, mask="random"),
    Request(1, 500),
    Request(1, 501, shares=7),
    Request(1, 330, shares=7),
    Request(1, 140, shares=7),  # too little to share
)
"""Texts that begin alike, and of these some that go on alike."""
_SCALE = 32**-0.5
_WINDOWS = tuple(AttentionSpec(_SCALE, window) for window in (1, 8, 40, None, 10_000))
_CAPS = (AttentionSpec(_SCALE, None, 5.0), AttentionSpec(0.3, None, 30.0), AttentionSpec(_SCALE, 24, 2.0))


def _of_shape(heads: int, kv_heads: int, dim: int, page_size: int) -> Case:
    specs = (AttentionSpec(dim**-0.5), AttentionSpec(dim**-0.5, 24))
    return Case(_MIXED, heads, kv_heads, dim, page_size, specs)


CASES: Mapping[str, Case] = {
    "decode one": Case(_decode(37)),
    "decode its first": Case(_decode(1)),
    "decode many": Case(_decode(1, 16, 17, 300, 5, 31, 32, 33, 100, 64, 2, 299)),
    "decode full pages": Case(_decode(*(64,) * 8)),
    "decode long": Case(_decode(3000), specs=_WINDOWS[2:4]),
    "prefill": Case((Request(5, 5), Request(64, 64), Request(65, 65), Request(200, 200))),
    "continued prefill": Case((Request(70, 200), Request(3, 90), Request(64, 128), Request(130, 131))),
    "prefill with a last query apart": Case((Request(129, 129), Request(257, 300), Request(1, 40))),
    "mixed": Case(_MIXED),
    "holes": Case((Request(1, 90, "holes"), Request(40, 90, "holes"), Request(70, 70, "holes"), Request(1, 20))),
    "scattered": Case((Request(1, 90, "scattered"), Request(40, 90, "scattered"), Request(1, 3, "scattered"))),
    "shared pages": Case((Request(1, 100), Request(1, 90, shares=0), Request(20, 120, shares=0))),
    "forks": Case(_FORKS),
    "forks, no groups": Case(_FORKS, 5, 5, 64),
    "forks, one head, pages of 13": Case(_FORKS, 3, 1, 16, 13),
    "windows over forks": Case(_FORKS, specs=_WINDOWS),
    "no queries": Case((Request(1, 20), Request(0, 20), Request(3, 20), Request(0, 0))),
    "masks": Case(_MASKED),
    "masks and windows": Case(_MASKED, specs=_WINDOWS),
    "windows": Case(_MIXED, specs=_WINDOWS),
    "windows over shared pages": Case((Request(1, 100), Request(1, 90, shares=0)), specs=_WINDOWS),
    "windows in decode": Case(_decode(1, 7, 8, 9, 100, 130, 40, 41), specs=_WINDOWS),
    "windows in prefill": Case((Request(200, 200), Request(64, 300), Request(1, 50)), specs=_WINDOWS),
    "soft caps": Case(_MIXED, specs=_CAPS),
    "large scores": Case(_MIXED, specs=(AttentionSpec(scale=2.0), AttentionSpec(2.0, 9, 50.0))),
    "no groups, dimension 16": _of_shape(2, 2, 16, 16),
    "groups of 4, dimension 64, pages of 8": _of_shape(8, 2, 64, 8),
    "groups of 5, dimension 128": _of_shape(5, 1, 128, 16),
    "groups of 7, dimension 64": _of_shape(14, 2, 64, 16),
    "groups of 8, dimension 96, pages of 32": _of_shape(8, 1, 96, 32),
    "groups of 2, dimension 256": _of_shape(2, 1, 256, 16),
    "groups of 3, dimension 80, pages of 13": _of_shape(3, 1, 80, 13),
}


def seeded(case: Case, seed: int) -> Case:
    """A problem of the same kind with other numbers and places."""
    return replace(case, seed=seed)
