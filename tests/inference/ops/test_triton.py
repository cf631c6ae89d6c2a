"""Triton's operations, in its interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

from pie_inference.ops.interface import Rotation
from testing.ops_oracle import CHECKS, assert_passes
from testing.triton_interpreter import Interpreter

CPU = torch.device("cpu")


def check(name: str, kind: str) -> None:
    from pie_inference.ops.torch_ops import TorchOps
    from pie_inference.ops.triton_ops import TritonOps

    dtype = getattr(torch, kind)
    assert_passes(name, TritonOps(TorchOps(CPU, dtype)), dtype, CPU)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CHECKS)
def test_it_equals_the_reference(interpreter: Interpreter, name: str, dtype: str) -> None:
    interpreter.call(check, name, dtype)


def nothing() -> None:
    from pie_inference.ops.torch_ops import TorchOps
    from pie_inference.ops.triton_ops import TritonOps

    ops, none = TritonOps(TorchOps(CPU, torch.float32)), torch.zeros(0, 8)
    assert ops.rms_norm(none, torch.ones(8), 1e-5).shape == (0, 8)
    assert ops.add_rms_norm(none, none, torch.ones(8), 1e-5).shape == (0, 8)
    assert ops.gated(none, "silu").shape == (0, 4)
    ops.rotate_(torch.zeros(0, 2, 8), Rotation(torch.zeros(0, 1, 8), torch.zeros(0, 1, 8)))


def test_no_rows(interpreter: Interpreter) -> None:
    interpreter.call(nothing)
