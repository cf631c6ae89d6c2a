"""Operations of layers: the kernels against plain torch operations in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pie_inference.cpu_kernels.library import Library
from pie_inference.cpu_kernels.linear import CpuLinear
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.ops.interface import Activation, Rotation
from pie_inference.ops.torch_ops import TorchOps
from tests.helpers.kernels import ISAS
from tests.helpers.tiers import pairs

CPU = torch.device("cpu")
REFERENCE = TorchOps(CPU, torch.float64)
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 5e-3}
"""Relative to the largest number; bfloat16 rounds to 2^-8."""


pytestmark = pytest.mark.parametrize(
    ("library", "dtype", "threads"), pairs(ISAS, DTYPES, (1, 2)), indirect=True, ids=str
)


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture
def ops(dtype: torch.dtype, library: Library, threads: None) -> CpuOps:
    return CpuOps(library, dtype)


def random(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[actual.dtype], f"of shape {list(actual.shape)}"


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


STORED = (torch.float32, torch.bfloat16, torch.float16)


def check_linear(ops: CpuOps, rows: Tensor, parts: list[Tensor], bias: Tensor | None = None) -> None:
    expected = rows.double() @ torch.cat(parts).to(rows.dtype).double().T
    actual = ops.linear(parts, bias)(rows)
    assert actual.dtype == rows.dtype
    assert actual.is_contiguous()
    assert_close(actual, expected if bias is None else expected + bias.double())


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_linear_of_odd_shapes(ops: CpuOps, dtype: torch.dtype, stored: torch.dtype) -> None:
    for outs, ins in ((48, 32), (16, 64), (272, 96), (1, 2), (100, 31), (49, 33), (63, 1), (7, 130)):
        weight = random(stored, outs, ins, seed=outs)
        for count in (1, 3, 9, 20):
            check_linear(ops, random(dtype, count, ins), [weight], random(dtype, outs, seed=2) if count % 2 else None)


@pytest.mark.parametrize("ins", [70, 96])  # 96 fills tiles
def test_linear_of_any_number_of_rows(ops: CpuOps, dtype: torch.dtype, ins: int) -> None:
    weight, bias = random(dtype, 150, ins, seed=1), random(dtype, 150, seed=2)
    for count in (*range(1, 34), 70, 255, 256, 257, 600):
        check_linear(ops, random(dtype, count, ins), [weight], bias)
    assert ops.linear([weight], bias)(random(dtype, 0, ins)).shape == (0, 150)


@pytest.mark.parametrize("ins", [5000, 5024])
@pytest.mark.parametrize("count", [1, 8, 9, 40, 300])
def test_linear_longer_than_a_block(ops: CpuOps, dtype: torch.dtype, count: int, ins: int) -> None:
    check_linear(ops, random(dtype, count, ins), [random(dtype, 90, ins, seed=1)], random(dtype, 90, seed=2))


def test_linear_of_several_parts(ops: CpuOps, dtype: torch.dtype) -> None:
    """Queries, keys and values side by side, and a rank's share of columns."""
    parts = [random(dtype, outs, 80, seed=outs)[:, 20:60] for outs in (50, 3, 27)]
    check_linear(ops, random(dtype, 5, 40), parts)
    check_linear(ops, random(dtype, 5, 40), [parts[0].half(), parts[1].half()])
    check_linear(ops, random(dtype, 5, 40), [parts[0].float(), parts[1].bfloat16()])


def test_linear_reads_views_in_place(ops: CpuOps, dtype: torch.dtype) -> None:
    weight, whole = random(dtype, 60, 24, seed=1), random(dtype, 12, 50)
    check_linear(ops, whole[:, 2:26], [weight])
    check_linear(ops, whole[::2, :24], [weight])
    check_linear(ops, random(dtype, 24, 7).T, [weight])
    check_linear(ops, random(dtype, 2, 3, 24), [weight])
    check_linear(ops, random(dtype, 5, 25)[:, 1:], [weight])  # rows of an odd length


def test_linear_keeps_no_reference_to_what_it_packed(ops: CpuOps, dtype: torch.dtype) -> None:
    rows, weight = random(dtype, 2, 16), random(dtype, 16, 16, seed=1)
    multiply = ops.linear([weight], None)
    before = multiply(rows)
    weight.zero_()
    assert torch.equal(multiply(rows), before)


@pytest.mark.parametrize("ins", [70, 5000])
def test_linear_is_the_same_whether_weights_are_kept_in_half_of_the_memory(
    ops: CpuOps, dtype: torch.dtype, ins: int
) -> None:
    """Weights of float32 layers are, if all are bfloat16 numbers; one that is not keeps the others in float32."""
    weight, more = random(torch.bfloat16, 90, ins, seed=1), torch.full((1, ins), 1 + 2**-20)
    layers = [ops.linear(parts, None) for parts in ([weight], [weight.float()], [weight.float(), more])]
    for count in (1, 5, 8, 9, 16, 17, 40):
        rows = random(dtype, count, ins)
        narrow, found, wide = (layer(rows) for layer in layers)
        assert torch.equal(found, narrow)
        assert torch.equal(wide[:, :90], narrow)
    if dtype == torch.float32:
        sizes = [layer._kept[0].nbytes for layer in layers if isinstance(layer, CpuLinear)]
        assert sizes == [96 * ins * 2, 96 * ins * 2, 96 * ins * 4], "outputs in units of 16"


@pytest.mark.parametrize("ins", [3000, 3008])
def test_rows_do_not_depend_on_each_other(ops: CpuOps, dtype: torch.dtype, ins: int) -> None:
    """What else is in a batch must not change a bit of a row."""
    rows, multiply = random(dtype, 300, ins), ops.linear([random(dtype, 100, ins, seed=1)], None)
    together = multiply(rows)
    assert torch.equal(multiply(rows[:20]), together[:20])
    assert torch.equal(multiply(rows[7:8]), together[7:8])
