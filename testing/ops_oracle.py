"""Random problems that test implementations of `Ops` on any device, with solutions in float64 on the CPU.

It needs only torch and this package, so that other machines can use it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pie_inference.ops.interface import Activation, Ops, Rotation
from pie_inference.ops.torch_ops import TorchOps

REFERENCE = TorchOps(torch.device("cpu"), torch.float64)
TOLERANCE = {torch.float32: 5e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
"""Largest error relative to the largest number: it allows the last rounding, and a few before it."""

Check = Callable[[Ops, torch.dtype, torch.device], float]
"""A check; it returns the largest error relative to the largest number."""


def _random(dtype: torch.dtype, device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def _error(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return float((actual.cpu().double() - expected).abs().max() / expected.abs().max())


def _rms_norm(*shape: int) -> Check:
    def check(ops: Ops, dtype: torch.dtype, device: torch.device) -> float:
        rows, weight = _random(dtype, device, *shape), _random(dtype, device, shape[-1], seed=1)
        expected = REFERENCE.rms_norm(rows.cpu().double(), weight.cpu().double(), 1e-5)
        return _error(ops.rms_norm(rows, weight, 1e-5), expected)

    return check


def _rms_norm_of_some_heads(ops: Ops, dtype: torch.dtype, device: torch.device) -> float:
    heads, weight = _random(dtype, device, 40, 9, 64)[:, 2:7], _random(dtype, device, 64, seed=1)
    expected = REFERENCE.rms_norm(heads.cpu().double(), weight.cpu().double(), 1e-5)
    return _error(ops.rms_norm(heads, weight, 1e-5), expected)


def _add_rms_norm(*shape: int) -> Check:
    def check(ops: Ops, dtype: torch.dtype, device: torch.device) -> float:
        residual, rows = (_random(dtype, device, *shape, seed=seed) for seed in (0, 1))
        weight, total = _random(dtype, device, shape[1], seed=2), residual.cpu().double() + rows.cpu().double()
        expected = REFERENCE.rms_norm(total, weight.cpu().double(), 1e-6)
        error = _error(ops.add_rms_norm(residual, rows, weight, 1e-6), expected)
        return max(error, _error(residual, total))

    return check


def _rotate(count: int, heads: int, dim: int, width: int) -> Check:
    """Checks rotation of some heads among others, in the leading `dim` of `width` dimensions."""

    def check(ops: Ops, dtype: torch.dtype, device: torch.device) -> float:
        angles = torch.linspace(0, 50, count * dim // 2).view(count, 1, -1)
        cos, sin = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
        rotation = Rotation(cos.to(dtype).to(device), sin.to(dtype).to(device))
        every = _random(dtype, device, count, heads + 3, width)
        exact = every.cpu().double()
        wide = Rotation(rotation.cos.cpu().double(), rotation.sin.cpu().double())
        REFERENCE.rotate_(exact[:, :heads, :dim], wide)
        ops.rotate_(every[:, :heads, :dim], rotation)
        return _error(every, exact)

    return check


def _gated(rows: int, size: int, activation: Activation) -> Check:
    def check(ops: Ops, dtype: torch.dtype, device: torch.device) -> float:
        both = 4 * _random(dtype, device, rows, 2 * size)
        expected = REFERENCE.gated(both.cpu().double(), activation)
        return _error(ops.gated(both, activation), expected)

    return check


def _linear(rows: int, ins: int, outs: int) -> Check:
    def check(ops: Ops, dtype: torch.dtype, device: torch.device) -> float:
        parts = [_random(dtype, torch.device("cpu"), outs, ins, seed=seed) for seed in (1, 2)]
        inputs, bias = _random(dtype, device, rows, ins), _random(dtype, device, 2 * outs, seed=3)
        weight = torch.cat(parts).double()
        return _error(ops.linear(parts, bias)(inputs), inputs.cpu().double() @ weight.T + bias.cpu().double())

    return check


CHECKS: Mapping[str, Check] = {
    "rms_norm, 1 row": _rms_norm(1, 16),
    "rms_norm, 70 rows of 2048": _rms_norm(70, 2048),
    "rms_norm, 4 rows of 100": _rms_norm(4, 100),
    "rms_norm, 4 dimensions": _rms_norm(2, 3, 4, 33),
    "rms_norm of some heads": _rms_norm_of_some_heads,
    "add_rms_norm, 33 rows of 2048": _add_rms_norm(33, 2048),
    "add_rms_norm, 3 rows of 77": _add_rms_norm(3, 77),
    "rotate, 1 head": _rotate(1, 1, 64, 64),
    "rotate, 20 heads of 128": _rotate(7, 20, 128, 128),
    "rotate, part of each head": _rotate(5, 3, 24, 96),
    "gated silu": _gated(5, 1500, "silu"),
    "gated gelu": _gated(3, 64, "gelu_tanh"),
    "linear": _linear(5, 96, 64),
}


def assert_passes(name: str, ops: Ops, dtype: torch.dtype, device: torch.device) -> None:
    error = CHECKS[name](ops, dtype, device)
    assert error <= TOLERANCE[dtype], f"{name}: {error}"
