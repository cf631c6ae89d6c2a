"""The pool of pages: its contents and the positions of its keys."""

from __future__ import annotations

import numpy as np
import torch

from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.testing.worker_batches import ints

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


def test_memory_of_a_large_cache_is_taken_when_written() -> None:
    before = resident_bytes()
    cache = KvCache(SHAPE, 1 << 18, torch.device("cpu"))
    assert sum(np.prod(part.shape) * 4 for part in cache._pages) >= 1 << 30
    assert resident_bytes() - before < 1 << 26


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
