"""Quantized layers equal products with the weights that they stand for, and are near those that they come from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import Library
from pie_inference.errors import ConfigError
from pie_inference.quantization import cpu_linear, torch_linear
from pie_inference.quantization.choose import Quantizer
from pie_inference.quantization.formats import QuantizedWeight, quantize
from pie_inference.quantization.names import FORMATS, Format
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.quantized_weights import FP4, all_fp4, random_fp4
from testing.worker_batches import Driver, Extend, Keys

CPU = torch.device("cpu")
WORST = {"int8": 0.008, "int4": 0.12, "int4-64": 0.11, "int4-32": 0.09, "fp8": 0.03}
"""Relative error of a product with normally distributed weights."""


def random_weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / math.sqrt(columns)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def exact_product(rows: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    product = rows.double() @ weight.dequantize(torch.float64).T
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_weight_is_near_its_source(name: str, dtype: torch.dtype) -> None:
    weight = random_weight(80, 256)
    quantized = quantize([weight[:30], weight[30:]], FORMATS[name], dtype, CPU)
    assert (quantized.rows, quantized.columns) == (80, 256)
    assert relative_error(quantized.dequantize(torch.float32), weight) < WORST[name]
    assert quantized.nbytes == FORMATS[name].nbytes(80, 256, dtype.itemsize)


@pytest.mark.parametrize("name", FORMATS)
def test_extreme_weights(name: str) -> None:
    """Zeros stay zeros, the largest magnitudes do not wrap around, one outlier costs its own group only."""
    weight = torch.zeros(16, 128)
    weight[1] = 3.0
    weight[2, ::2], weight[2, 1::2] = -7.5, 7.5
    weight[3] = 1e-30
    found = quantize([weight], FORMATS[name], torch.float32, CPU).dequantize(torch.float32)
    np.testing.assert_allclose(found.numpy(), weight.numpy(), atol=1e-5, rtol=0.005)


def test_quantizing_leaves_the_source_alone() -> None:
    weight = random_weight(16, 128)
    before = weight.clone()
    for format in FORMATS.values():
        quantize([weight], format, torch.float32, CPU)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("outs", [48, 50])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_layers_multiply_with_the_dequantized_weights(
    name: str, dtype: torch.dtype, tolerance: float, outs: int, has_bias: bool
) -> None:
    weight = quantize([random_weight(outs, 256)], FORMATS[name], dtype, CPU)
    bias = torch.randn(outs).to(dtype) if has_bias else None
    layer = torch_linear.make_linear(weight, bias)
    for count in (1, 3, 20):
        rows = random_weight(count, 256, seed=count).mul_(16).to(dtype)
        product = layer(rows)
        assert (product.shape, product.dtype) == ((count, outs), dtype)
        assert relative_error(product, exact_product(rows, weight, bias)) < tolerance


def assert_rounded(product: torch.Tensor, exact: torch.Tensor) -> None:
    """It errs hardly more than the exact product does when it is rounded to bfloat16."""
    assert relative_error(product, exact) < 1.05 * relative_error(exact.bfloat16(), exact) + 1e-4


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("outs", "ins"), [(64, 128), (50, 256), (130, 384), (3, 128), (36, 4224)])
@pytest.mark.parametrize("name", FORMATS)
def test_kernels_multiply_with_the_dequantized_weights(
    name: str, outs: int, ins: int, threads: int, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight = quantize([random_weight(outs, ins)], FORMATS[name], torch.bfloat16, CPU)
    bias = torch.randn(outs).bfloat16() if outs % 64 else None
    layer = cpu_linear.make_linear(library, weight, bias)
    for count in (1, 2, 3, 4, 11, 27, 300):
        rows = random_weight(count, ins, seed=count).mul_(16).bfloat16()
        exact = exact_product(rows, weight, bias)
        assert_rounded(layer(rows), exact)
        assert torch.equal(layer(rows)[count // 2], layer(rows[count // 2 :][:1])[0])  # whatever else is in the batch


@pytest.mark.parametrize("ins", [97, 130])
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_kernels_take_any_number_of_inputs(name: str, ins: int, library: Library) -> None:
    weight = quantize([random_weight(20, ins)], FORMATS[name], torch.bfloat16, CPU)
    rows = random_weight(5, ins, seed=1).bfloat16()
    assert_rounded(cpu_linear.make_linear(library, weight, None)(rows), exact_product(rows, weight, None))


@pytest.mark.parametrize("name", FORMATS)
def test_kernels_take_rows_of_any_magnitude(name: str, library: Library) -> None:
    """One feature may be a thousand times the others, as trained models have it; rows may be zero."""
    weight = quantize([random_weight(64, 256)], FORMATS[name], torch.bfloat16, CPU)
    rows = random_weight(4, 256, seed=1)
    rows[0, 7], rows[1, 200] = 1000.0, -1000.0
    rows[2] = 0
    rows[3] *= 1e-20
    rows = rows.bfloat16()
    exact = exact_product(rows, weight, None).bfloat16()
    product = cpu_linear.make_linear(library, weight, None)(rows)
    for row in (0, 1, 3):
        assert relative_error(product[row], exact[row]) < 2e-3
    assert not product[2].any()


def test_every_fp8_number_is_exact(library: Library) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0  # not a number
    values = codes.view(torch.float8_e4m3fn).view(64, 4)
    weight = QuantizedWeight(FORMATS["fp8"], values, torch.ones(64, 1).bfloat16(), None)
    product = cpu_linear.make_linear(library, weight, None)(torch.eye(4).bfloat16())
    assert torch.equal(product.T.float(), values.float())


@pytest.mark.parametrize(("group", "with_zeros"), [(None, False), (None, True), (32, True), (128, False)])
def test_kernels_know_all_integers_of_8_bits(group: int | None, with_zeros: bool, library: Library) -> None:
    """Checkpoints have -128, which quantizing here never makes."""
    values = torch.arange(-128, 128).repeat(20, 1).roll(3, 1).to(torch.int8)
    scales = torch.rand(20, 256 // (group or 256), generator=torch.Generator().manual_seed(0)).bfloat16() + 0.1
    zeros = torch.full_like(scales, -3, dtype=torch.int8) if with_zeros else None
    weight = QuantizedWeight(Format("int8", "int8", group), values, scales, zeros, with_zeros)
    layer = cpu_linear.make_linear(library, weight, torch.ones(20).bfloat16())
    for count in (1, 3, 40):
        rows = random_weight(count, 256, seed=count).bfloat16()
        assert_rounded(layer(rows), exact_product(rows, weight, torch.ones(20)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("outs", "ins"), [(64, 128), (50, 96), (3, 4224)])
@pytest.mark.parametrize("kind", FP4)
def test_kernels_multiply_floats_of_4_bits(
    kind: str, outs: int, ins: int, threads: int, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight = random_fp4(kind, outs, ins)
    bias = torch.randn(outs).bfloat16() if outs % 64 else None
    layer = cpu_linear.make_linear(library, weight, bias)
    for count in (1, 2, 7, 27, 300):
        rows = random_weight(count, ins, seed=count).mul_(16).bfloat16()
        assert_rounded(layer(rows), exact_product(rows, weight, bias))
        assert torch.equal(layer(rows)[count // 2], layer(rows[count // 2 :][:1])[0])  # whatever else is in the batch


@pytest.mark.parametrize("kind", FP4)
def test_all_numbers_and_scales_of_fp4_are_exact(kind: str, library: Library) -> None:
    weight = all_fp4(kind)
    product = cpu_linear.make_linear(library, weight, None)(torch.eye(32).bfloat16())
    assert torch.equal(product.T, weight.dequantize(torch.bfloat16))


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantizer_makes_layers(name: str) -> None:
    weight = random_weight(48, 256)
    layer = Quantizer(FORMATS[name], CPU, torch.bfloat16, None).linear([weight[:16], weight[16:]], None)
    rows = random_weight(4, 256, seed=1)
    assert relative_error(layer(rows.bfloat16()), rows @ weight.T) < WORST[name] + 0.01


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_model_is_near_the_exact_one(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_size=128, intermediate_size=256, dtype=torch.bfloat16)
    tokens = np.random.default_rng(0).integers(0, 272, 40).tolist()
    found = {}
    for quantization in ("none", name):
        config = WorkerConfig(
            tmp_path, "model", dtype="float32", quantization=quantization, pages=16, embeds=2048, device="cpu"
        )
        worker = Worker(config)
        [logprobs] = Driver(worker.run, "model").logprobs(Extend(Keys(), tokens), vocab_size=272)
        found[quantization] = (logprobs, worker.describe()[0].weight_bytes)
    error = np.abs(found[name][0] - found["none"][0]).mean()
    assert 0 < error < 8 * WORST[name]
    assert found[name][1] < 0.6 * found["none"][1]


def test_a_group_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_size=64, intermediate_size=96)
    with pytest.raises(ConfigError, match=r"layers.0.mlp.down_proj.weight has 96 input .* choose int8 or int4-32 or"):
        Worker(WorkerConfig(tmp_path, "model", quantization="int4", pages=4))
