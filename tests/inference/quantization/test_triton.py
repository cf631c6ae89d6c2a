"""Triton's quantized layers, in its interpreter, against products with the weights that they stand for."""

from __future__ import annotations

import pytest
import torch

from pie_inference.layers.grouped import OneByOne, group
from pie_inference.quantization import triton_linear
from testing.quantized_weights import FP4, INTEGERS, all_fp4, random_weight
from testing.triton_interpreter import Interpreter


def solve(name: str, dtype: str, outs: int, ins: int, counts: tuple[int, ...], biased: bool) -> list[float]:
    """Relative errors."""
    generator = torch.Generator().manual_seed(1)
    number = getattr(torch, dtype)
    weight = random_weight(name, outs, ins, number)
    bias = torch.randn(outs, generator=generator).to(number) if biased else None
    layer = triton_linear.TritonLinear(weight, bias)
    errors = []
    for count in counts:
        rows = torch.randn(count, ins, generator=generator).to(number)
        exact = rows.double() @ weight.dequantize(torch.float64).T
        exact = exact if bias is None else exact + bias.double()
        errors.append(float((layer(rows).double() - exact).norm() / exact.norm()))
    return errors


@pytest.mark.parametrize("name", ["int8", "int4", "int4-32"])
def test_layers_multiply_with_the_dequantized_weights(name: str, interpreter: Interpreter) -> None:
    errors = interpreter.call(solve, name, "float32", 70, 256, (1, 17, 70), True)
    assert max(errors) < 1e-6
    assert (
        max(interpreter.call(solve, name, "bfloat16", 20, 128, (3,), False)) < 5e-3
    )  # the interpreter cuts digits off


@pytest.mark.parametrize("name", INTEGERS)
def test_layers_take_zeros_from_integers(name: str, interpreter: Interpreter) -> None:
    ins = 256 if INTEGERS[name][1] else 90  # not a whole number of blocks
    assert max(interpreter.call(solve, name, "float32", 70, ins, (1, 17), True)) < 1e-6
    assert max(interpreter.call(solve, name, "bfloat16", 20, ins, (3,), False)) < 5e-3


def test_inputs_need_not_fill_blocks(interpreter: Interpreter) -> None:
    assert max(interpreter.call(solve, "int8", "float32", 20, 97, (2,), True)) < 1e-6


@pytest.mark.parametrize("kind", FP4)
def test_layers_multiply_floats_of_4_bits(kind: str, interpreter: Interpreter) -> None:
    assert max(interpreter.call(solve, kind, "float32", 70, 96, (1, 17, 70), True)) < 1e-6
    assert max(interpreter.call(solve, kind, "bfloat16", 20, 128, (3,), False)) < 5e-3


@pytest.mark.parametrize("kind", FP4)
def test_numbers_of_4_bits_and_their_scales_are_exact(kind: str, interpreter: Interpreter) -> None:
    interpreter.call(multiply_by_one, kind)


def multiply_by_one(kind: str) -> None:
    weight = all_fp4(kind)
    found = triton_linear.TritonLinear(weight, None)(torch.eye(32))
    assert torch.equal(found.T, weight.dequantize(torch.float32))


def test_fp8_layers(interpreter: Interpreter) -> None:
    assert max(interpreter.call(solve, "fp8", "float32", 70, 128, (3,), True)) < 1e-6


@pytest.mark.parametrize("name", ["int8", "int4-32", "fp8", *FP4, *INTEGERS])
def test_all_layers_multiply_as_each_alone(name: str, interpreter: Interpreter) -> None:
    interpreter.call(multiply_all, name)


def multiply_all(name: str) -> None:
    outs, ins, counts = 70, 64 if name in ("int4-32", *FP4) else 128, (1, 0, 18, 0, 3)
    whole = random_weight(name, outs * len(counts), ins, torch.float32)
    layers = [triton_linear.TritonLinear(whole.narrowed(0, n * outs, outs), None) for n in range(len(counts))]
    together = group(layers)
    assert together.capturable
    rows = torch.randn(sum(counts), ins, generator=torch.Generator().manual_seed(1))
    for shift in range(len(counts)):  # also with no row at either end
        ends = torch.tensor(counts).roll(shift).cumsum(0).to(torch.int32)
        found, alone = together(rows, ends), OneByOne(layers)(rows, ends)
        assert (found - alone).norm() < 1e-6 * alone.norm()


def test_layers_of_several_sizes_run_one_by_one() -> None:
    weight = random_weight("int8", 40, 64, torch.float32)
    parts = [weight.narrowed(0, 0, 16), weight.narrowed(0, 16, 24)]
    assert isinstance(group([triton_linear.TritonLinear(part, None) for part in parts]), OneByOne)
