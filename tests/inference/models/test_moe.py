"""Mixtures of experts: both ways to run them, and that a row's result is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pie_inference.device.ranks import SingleRank
from pie_inference.layers import moe
from pie_inference.layers.moe import GroupedExperts, LoopedExperts, MixtureOfExperts, MoeShape
from pie_inference.loading.checkpoint import Checkpoint
from pie_inference.loading.weights import WeightLoader
from pie_inference.ops.torch_ops import TorchOps

SHAPE = MoeShape(hidden_size=32, inner_size=24, num_experts=6, experts_per_token=2, renormalize=True)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> WeightLoader:
    folder: Path = tmp_path_factory.mktemp("experts")
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (24, 32), "up_proj": (24, 32), "down_proj": (32, 24)}
    tensors = {
        f"moe.experts.{expert}.{name}.weight": torch.randn(shape, generator=generator) / 4
        for expert in range(6)
        for name, shape in shapes.items()
    }
    tensors["moe.gate.weight"] = torch.randn(6, 32, generator=generator) / 4
    save_file(tensors, folder / "model.safetensors")
    cpu = torch.device("cpu")
    return WeightLoader(Checkpoint(folder), TorchOps(cpu, torch.float32), torch.float32, cpu, SingleRank())


def reference(weights: WeightLoader, rows: Tensor, shape: MoeShape) -> Tensor:
    """Each row by itself, in float64."""

    def read(name: str, *size: int) -> Tensor:
        return weights.tensor(f"moe.{name}.weight", *size, dtype=torch.float64)

    def run(expert: int, row: Tensor) -> Tensor:
        gate, up = (read(f"experts.{expert}.{name}_proj", 24, 32) @ row for name in ("gate", "up"))
        return read(f"experts.{expert}.down_proj", 32, 24) @ (torch.nn.functional.silu(gate) * up)

    results = []
    for row in rows.double():
        probabilities = (read("gate", 6, 32) @ row).softmax(0)
        shares, chosen = probabilities.topk(shape.experts_per_token)
        shares = shares / shares.sum() if shape.renormalize else shares
        outputs = [weight * run(int(expert), row) for weight, expert in zip(shares, chosen, strict=True)]
        results.append(torch.stack(outputs).sum(0))
    return torch.stack(results).float()


@pytest.mark.parametrize("kind", [LoopedExperts, GroupedExperts])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_both_ways_equal_the_definition(
    kind: type, renormalize: bool, count: int, weights: WeightLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe, "can_group", lambda weights, shape: kind is GroupedExperts)
    shape = MoeShape(32, 24, 6, 2, renormalize)
    layer = MixtureOfExperts(weights, "moe", shape, "silu")
    assert layer.capturable == (kind is GroupedExperts)
    rows = torch.randn(count, 32, generator=torch.Generator().manual_seed(count))
    torch.testing.assert_close(layer(rows), reference(weights, rows, shape), rtol=1e-5, atol=1e-6)


def test_a_row_does_not_depend_on_the_others(weights: WeightLoader) -> None:
    layer = MixtureOfExperts(weights, "moe", SHAPE, "silu")
    rows = torch.randn(30, 32, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([layer(row[None]) for row in rows])
    torch.testing.assert_close(layer(rows), alone, rtol=1e-5, atol=1e-6)


def test_experts_that_nobody_chose_are_not_run(weights: WeightLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = MixtureOfExperts(weights, "moe", SHAPE, "silu")
    experts = layer._experts
    assert isinstance(experts, LoopedExperts)
    run = experts._run
    seen: list[int] = []

    def noted(expert: int, rows: torch.Tensor) -> torch.Tensor:
        seen.append(expert)
        return run(expert, rows)

    monkeypatch.setattr(experts, "_run", noted)
    layer(torch.randn(1, 32))
    assert len(seen) == len(set(seen)) == 2


def test_a_cpu_runs_experts_one_by_one(weights: WeightLoader) -> None:
    assert not moe.can_group(weights, SHAPE)
