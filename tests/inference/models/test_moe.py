"""Mixtures of experts: all ways to run them, and that a row's result is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pie_inference.cpu_kernels.library import Library
from pie_inference.device.ranks import SingleRank
from pie_inference.layers import grouped
from pie_inference.layers.grouped import group, has_grouped_product
from pie_inference.layers.moe import MixtureOfExperts, MoeShape
from pie_inference.loading.checkpoint import Checkpoint
from pie_inference.loading.weights import WeightLoader
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.ops.interface import Linear
from pie_inference.ops.torch_ops import TorchOps

SHAPE = MoeShape(hidden_size=32, inner_size=24, num_experts=6, experts_per_token=2, renormalize=True)


@pytest.fixture
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


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_layers_one_by_one_equal_the_definition(count: int, renormalize: bool, weights: WeightLoader) -> None:
    shape = MoeShape(32, 24, 6, 2, renormalize)
    layer = MixtureOfExperts(weights, "moe", shape, "silu")
    assert not layer.capturable
    assert_is_the_definition(layer, weights, count, shape)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_compiled_kernels_equal_the_definition(count: int, library: Library, weights: WeightLoader) -> None:
    weights.ops = CpuOps(library, torch.float32)
    layer = MixtureOfExperts(weights, "moe", SHAPE, "silu")
    assert layer.capturable
    assert_is_the_definition(layer, weights, count, SHAPE)


def test_torchs_product_of_all_experts_equals_the_definition(
    weights: WeightLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "has_grouped_product", lambda *_: True)
    layer = MixtureOfExperts(weights, "moe", SHAPE, "silu")
    assert layer.capturable
    assert_is_the_definition(layer, weights, 7, SHAPE)


def assert_is_the_definition(layer: MixtureOfExperts, weights: WeightLoader, count: int, shape: MoeShape) -> None:
    rows = torch.randn(count, 32, generator=torch.Generator().manual_seed(count))
    torch.testing.assert_close(layer(rows), reference(weights, rows, shape), rtol=1e-5, atol=1e-6)


def test_a_row_does_not_depend_on_the_others(weights: WeightLoader) -> None:
    layer = MixtureOfExperts(weights, "moe", SHAPE, "silu")
    rows = torch.randn(30, 32, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([layer(row[None]) for row in rows])
    torch.testing.assert_close(layer(rows), alone, rtol=1e-5, atol=1e-6)


def test_layers_that_nobody_chose_are_not_run() -> None:
    seen: list[int] = []

    def layer(number: int) -> Linear:
        def run(rows: Tensor) -> Tensor:
            seen.append(number)
            return rows * number

        return run

    run_all = group([layer(number) for number in range(5)])
    found = run_all(torch.ones(4, 1), torch.tensor([0, 1, 1, 4, 4], dtype=torch.int32))
    assert (seen, found[:, 0].tolist()) == ([1, 3], [1, 3, 3, 3])


def test_a_cpu_has_no_product_of_torchs() -> None:
    assert not has_grouped_product(torch.device("cpu"), torch.bfloat16, [16, 16])
