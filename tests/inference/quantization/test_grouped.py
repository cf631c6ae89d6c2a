"""Layers of one kind as one product, each with rows of its own, are what each of them is alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pie_inference.cpu_kernels.library import Library
from pie_inference.cpu_kernels.linear import CpuLinears
from pie_inference.layers.grouped import OneByOne, group
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.ops.interface import Linear
from pie_inference.quantization import cpu_linear
from pie_inference.quantization.formats import QuantizedWeight, stack
from testing.quantized_weights import KINDS, random_weight

COUNT = 7
ROWS = {
    "one each": (1, 1, 1, 1, 1, 1, 1),
    "one has all": (0, 0, 0, 40, 0, 0, 0),
    "the last has one": (0, 0, 0, 0, 0, 0, 1),
    "uneven": (3, 0, 17, 1, 0, 300, 5),
}


def random_weights(name: str, outs: int, ins: int) -> list[QuantizedWeight]:
    """Different ones in one form."""
    weight = random_weight(name, outs, ins, torch.bfloat16)
    return [stack([weight.narrowed(0, n, outs - n), weight.narrowed(0, 0, n)]) for n in range(COUNT)]


def random_rows(counts: Sequence[int], ins: int) -> tuple[Tensor, Tensor]:
    """Rows, and where those of each layer end."""
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    return torch.randn(sum(counts), ins, generator=torch.Generator().manual_seed(1)).bfloat16(), ends


def assert_equals_products(
    found: Tensor, weights: Sequence[QuantizedWeight], rows: Tensor, counts: Sequence[int]
) -> None:
    """It errs hardly more than the exact products do when they are rounded to bfloat16."""
    parts = zip(torch.split(rows.double(), list(counts)), weights, strict=True)
    exact = torch.cat([own @ weight.dequantize(torch.float64).T for own, weight in parts])
    error, least = ((each.double() - exact).norm() / exact.norm() for each in (found, exact.bfloat16()))
    assert error < 1.05 * least + 1e-4


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("outs", "ins"), [(50, 384), (96, 128)])
@pytest.mark.parametrize("name", KINDS)
def test_kernels_multiply_all_as_each_alone(
    name: str, outs: int, ins: int, threads: int, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weights = random_weights(name, outs, ins)
    layers = [cpu_linear.make_linear(library, weight, None) for weight in weights]
    together = group(layers)
    assert isinstance(together, CpuLinears)
    for counts in ROWS.values():
        rows, ends = random_rows(counts, ins)
        found = together(rows, ends)
        assert torch.equal(found, OneByOne(layers)(rows, ends))
        assert_equals_products(found, weights, rows, counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_multiply_all_that_are_not_quantized(dtype: torch.dtype, library: Library) -> None:
    ops = CpuOps(library, dtype)
    layers = [ops.linear([torch.randn(50, 97)], None) for _ in range(COUNT)]
    for counts in ROWS.values():
        rows, ends = random_rows(counts, 97)
        assert torch.equal(group(layers)(rows.to(dtype), ends), OneByOne(layers)(rows.to(dtype), ends))


def test_layers_of_several_kinds_run_one_by_one(library: Library) -> None:
    weights = [*random_weights("int8", 32, 128)[:4], *random_weights("fp8", 32, 128)[4:]]
    layers: list[Linear] = [cpu_linear.make_linear(library, weight, None) for weight in weights]
    together = group(layers)
    assert isinstance(together, OneByOne)
    counts = ROWS["uneven"]
    rows, ends = random_rows(counts, 128)
    assert_equals_products(together(rows, ends), weights, rows, counts)
