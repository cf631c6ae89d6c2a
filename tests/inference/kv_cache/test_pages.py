"""The pool of pages: its contents and the positions of its keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from pie_inference.kv_cache import pages as kv_pages
from pie_inference.kv_cache.pages import KvCache, KvShape
from testing.worker_batches import ints

SHAPE = KvShape(num_layers=2, num_kv_heads=2, head_dim=16, page_size=8, dtype=torch.float32)


def make_cache() -> KvCache:
    return KvCache(SHAPE, 10, torch.device("cpu"))


def test_what_is_written_can_be_read() -> None:
    cache, rows = make_cache(), torch.randn(3, 4, 16)
    slots = cache.place(ints([79, 3, 8]), ints([5, 6, 7]))
    cache.write(1, slots, rows)
    assert torch.equal(cache.read(1, slots), rows)
    assert not cache.read(0, slots).any()
    assert cache.positions[[79, 3, 8]].tolist() == [5, 6, 7]


def test_copies_read_all_sources_first_and_take_positions_along() -> None:
    cache, rows = make_cache(), torch.randn(2, 4, 16)
    slots = cache.place(ints([1, 2]), ints([5, 6]))
    cache.write(0, slots, rows)
    cache.copy(ints([1, 2]), ints([2, 40]))
    assert torch.equal(cache.read(0, cache.locate(ints([1, 2, 40]))), rows[[0, 0, 1]])
    assert cache.positions[[1, 2, 40]].tolist() == [5, 5, 6]


@pytest.mark.parametrize("staged", [1, 1000, 3000, 1 << 20])
def test_any_copy_is_a_snapshot_in_pieces_of_any_size(staged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole pages and single slots, in any order, with sources that are targets too."""
    monkeypatch.setattr(kv_pages, "STAGED_BYTES", staged)
    cache, random = make_cache(), np.random.default_rng(staged)
    for pages in cache._pages:
        pages.normal_()
    every = cache.locate(ints(range(80)))
    for _ in range(30):
        cache.positions[:] = random.permutation(80)
        source, target = (ints(random.permutation(80)[:40]) for _ in range(2))
        for number in random.permutation(5)[:3]:
            source[number * 8 : number * 8 + 8] = random.integers(0, 10) * 8 + np.arange(8)
            where = np.setdiff1d(np.arange(10), target // 8)
            if len(where):
                target[number * 8 : number * 8 + 8] = where[0] * 8 + np.arange(8)
        expected = [cache.read(layer, every) for layer in range(2)]
        for contents in expected:
            contents[target] = contents[source]
        positions = cache.positions.copy()
        positions[target] = positions[source]
        cache.copy(source, target)
        assert all(torch.equal(cache.read(layer, every), expected[layer]) for layer in range(2))
        assert (cache.positions == positions).all()


def test_a_large_copy_takes_little_memory_and_takes_it_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pages, "STAGED_BYTES", 4096)
    cache, taken, empty = make_cache(), list[int](), torch.empty
    for pages in cache._pages:
        pages.normal_()
    before = [pages.clone() for pages in cache._pages]

    def give(*shape: int, **more: Any) -> torch.Tensor:
        taken.append(math.prod(shape) * 4)
        if sum(taken) > 5000:
            raise MemoryError("too little is left")
        return empty(*shape, **more)

    monkeypatch.setattr(torch, "empty", give)
    cache.copy(ints(range(60)), ints(range(20, 80)))
    assert sum(taken) <= 4096
    assert not any(map(torch.equal, cache._pages, before))
    after = [pages.clone() for pages in cache._pages]
    with pytest.raises(MemoryError):
        cache.copy(ints(range(60)), ints(range(20, 80)))
    assert all(map(torch.equal, cache._pages, after))


def test_memory_of_a_large_cache_is_taken_when_written() -> None:
    before = resident_bytes()
    cache = KvCache(SHAPE, 1 << 18, torch.device("cpu"))
    assert sum(np.prod(part.shape) * 4 for part in cache._pages) >= 1 << 30
    assert resident_bytes() - before < 1 << 26


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
