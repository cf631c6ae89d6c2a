"""Operations of layers: the kernels against plain torch operations in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_cpu_kernels import needs_kernels
from torch import Tensor

from pie_inference.cpu_kernels.library import find_library
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.ops.interface import Activation, Rotation
from pie_inference.ops.torch_ops import TorchOps

CPU = torch.device("cpu")
REFERENCE = TorchOps(CPU, torch.float64)
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 5e-3}
"""Relative to the largest number; bfloat16 rounds to 2^-8."""

pytestmark = needs_kernels


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture
def ops(dtype: torch.dtype, kernel_cache: Path) -> CpuOps:
    library = find_library("auto", kernel_cache, CPU)
    assert library is not None
    return CpuOps(library, dtype)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[actual.dtype]


@pytest.mark.parametrize("shape", [(1, 16), (3, 64), (70, 2048), (2, 5), (4, 100), (5, 3, 24), (2, 3, 4, 33)])
def test_rms_norm(ops: CpuOps, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows, weight = random(dtype, *shape), random(dtype, shape[-1], seed=1)
    assert_close(ops.rms_norm(rows, weight, 1e-5), REFERENCE.rms_norm(rows.double(), weight.double(), 1e-5))


def test_rms_norm_of_some_heads(ops: CpuOps, dtype: torch.dtype) -> None:
    heads, weight = random(dtype, 40, 9, 64)[:, 2:7], random(dtype, 64, seed=1)
    normalized = ops.rms_norm(heads, weight, 1e-5)
    assert normalized.is_contiguous()
    assert_close(normalized, REFERENCE.rms_norm(heads.double(), weight.double(), 1e-5))


@pytest.mark.parametrize("shape", [(1, 16), (33, 2048), (3, 77)])
def test_add_rms_norm(ops: CpuOps, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    residual, rows, weight = random(dtype, *shape), random(dtype, *shape, seed=1), random(dtype, shape[1], seed=2)
    total = residual + rows
    normalized = ops.add_rms_norm(residual, rows, weight, 1e-6)
    assert torch.equal(residual, total)
    assert_close(normalized, REFERENCE.rms_norm(total.double(), weight.double(), 1e-6))


@pytest.mark.parametrize(("count", "heads", "dim"), [(1, 1, 64), (7, 5, 128), (200, 12, 64), (3, 2, 24), (2, 3, 6)])
def test_rotate(ops: CpuOps, dtype: torch.dtype, count: int, heads: int, dim: int) -> None:
    everything = random(dtype, count, heads + 3, dim)
    before = everything.clone()
    angles = random(torch.float32, count, 1, dim // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    rotation = Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
    expected = before[:, 1 : 1 + heads].double()
    REFERENCE.rotate_(expected, Rotation(rotation.cos.double(), rotation.sin.double()))
    ops.rotate_(everything[:, 1 : 1 + heads], rotation)
    assert_close(everything[:, 1 : 1 + heads], expected)
    assert torch.equal(everything[:, 0], before[:, 0])
    assert torch.equal(everything[:, 1 + heads :], before[:, 1 + heads :])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(1, 32), (70, 4096), (3, 18)])
def test_gated(ops: CpuOps, dtype: torch.dtype, shape: tuple[int, int], activation: Activation) -> None:
    gate_up = 4 * random(dtype, *shape)
    expected = REFERENCE.gated(gate_up.double(), activation)
    assert_close(ops.gated(gate_up, activation), expected)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_far_from_zero(ops: CpuOps, dtype: torch.dtype, activation: Activation) -> None:
    gate = torch.tensor([[-1e30, -200.0, -89.0, -20.0, 20.0, 89.0, 200.0, 1e30]], dtype=dtype)
    gate_up = torch.cat((gate, torch.ones_like(gate)), -1)
    expected = REFERENCE.gated(gate_up.double(), activation)
    torch.testing.assert_close(ops.gated(gate_up, activation).double(), expected, rtol=1e-2, atol=1e-30)
