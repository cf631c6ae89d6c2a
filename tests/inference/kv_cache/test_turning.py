"""Keys that are moved to other positions are those that are computed there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pie_inference.kv_cache import pages as kv_pages
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.layers.rotary import RopeConfig, Rotary
from pie_inference.ops.torch_ops import TorchOps
from testing.worker_batches import ints

CPU = torch.device("cpu")
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
ROPES = {
    "all of a head": RopeConfig("default", 10_000.0, 16, 512, {}),
    "a part of a head": RopeConfig("default", 10_000.0, 8, 512, {}),
    "with a scale": RopeConfig("yarn", 10_000.0, 16, 512, YARN),
}
SLOTS = ints([3, 8, 9, 10, 11, 12, 13, 14, 15, 79])


def filled(rope: RopeConfig, keys: torch.Tensor, positions: Any) -> KvCache:
    """A cache of one layer that has keys [M, 2, head_dim] at positions, as a model computes them, in SLOTS."""
    cache = KvCache(KvShape(1, 2, keys.shape[-1], 8, keys.dtype), 10, CPU)
    rotated = keys.double().clone()
    rotation = Rotary(rope, CPU).at(torch.tensor(positions), torch.float64)
    TorchOps(CPU, torch.float64).rotate_(rotated[..., : rope.dim], rotation)
    cache.write(0, cache.place(SLOTS, ints(positions)), torch.cat([rotated.to(keys.dtype), keys], 1))
    return cache


def move(cache: KvCache, rope: RopeConfig, positions: Any) -> None:
    far = torch.from_numpy(cache.distances(SLOTS, ints(positions))).long()
    dtype = torch.promote_types(cache.shape.dtype, torch.float32)
    cache.shift(SLOTS, ints(positions), [Rotary(rope, CPU).by(far, dtype)])


@pytest.mark.parametrize("staged", [1, 1 << 20])
@pytest.mark.parametrize("name", ROPES)
def test_moved_keys_are_those_of_the_new_positions(name: str, staged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pages, "STAGED_BYTES", staged)
    keys, before = torch.randn(10, 2, 16, dtype=torch.float64), [5, *range(20, 28), 400]
    after = [25, *range(7, 15), 399]
    cache, wanted = filled(ROPES[name], keys, before), filled(ROPES[name], keys, after)
    move(cache, ROPES[name], after)
    every = cache.locate(ints(range(80)))
    torch.testing.assert_close(cache.read(0, every), wanted.read(0, every), rtol=0, atol=1e-9)
    assert (cache.positions == wanted.positions).all()


@pytest.mark.parametrize(
    ("dtype", "moves", "most"),
    [(torch.bfloat16, 1, 0.0025), (torch.bfloat16, 100, 0.06), (torch.float32, 100, 1e-5)],
)
def test_each_move_rounds_keys_as_the_reference_says(dtype: torch.dtype, moves: int, most: float) -> None:
    """The numbers of forward.wit. What a small move changes may be less than bfloat16 can tell: so the error grows with
    the number of moves, not with its root."""
    torch.manual_seed(1)
    keys, rope = torch.randn(10, 2, 128).to(dtype), RopeConfig("default", 500_000.0, 128, 512, {})
    cache = filled(rope, keys, range(10))
    for n in range(1, moves + 1):
        move(cache, rope, range(3 * n, 3 * n + 10))
    exact = filled(rope, keys.double(), range(3 * moves, 3 * moves + 10)).read(0, cache.locate(SLOTS))[:, :2]
    error = float((cache.read(0, cache.locate(SLOTS))[:, :2] - exact).norm() / exact.norm())
    assert most / 3 < error < most or (dtype == torch.float32 and error < most)
