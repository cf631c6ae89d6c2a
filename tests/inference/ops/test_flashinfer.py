"""Operations by FlashInfer against plain torch operations, on a torch implementation of its API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pie_inference.device import flashinfer_library, triton_support
from pie_inference.ops import choose
from pie_inference.ops.flashinfer_ops import FlashInferOps
from pie_inference.ops.interface import Activation, Rotation
from pie_inference.ops.torch_ops import TorchOps
from tests.helpers.fake_flashinfer import fake_flashinfer

PLAIN = TorchOps(torch.device("cpu"), torch.float32)


@pytest.fixture
def ops() -> FlashInferOps:
    return FlashInferOps(fake_flashinfer(), PLAIN)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 64), (0, 64), (5, 3, 24), (2, 3, 4, 32)])
def test_rms_norm(ops: FlashInferOps, shape: tuple[int, ...]) -> None:
    rows, weight = random(*shape), random(shape[-1], seed=1)
    torch.testing.assert_close(ops.rms_norm(rows, weight, 1e-5), PLAIN.rms_norm(rows, weight, 1e-5))


def test_rms_norm_of_a_view(ops: FlashInferOps) -> None:
    rows, weight = random(4, 6, 16)[:, 1:3], random(16, seed=1)
    torch.testing.assert_close(ops.rms_norm(rows, weight, 1e-5), PLAIN.rms_norm(rows, weight, 1e-5))


@pytest.mark.parametrize("count", [0, 1, 7])
def test_add_rms_norm(ops: FlashInferOps, count: int) -> None:
    residual, rows, weight = random(count, 32), random(count, 32, seed=1), random(32, seed=2)
    expected_residual = residual.clone()
    expected = PLAIN.add_rms_norm(expected_residual, rows, weight, 1e-5)
    torch.testing.assert_close(ops.add_rms_norm(residual, rows, weight, 1e-5), expected)
    torch.testing.assert_close(residual, expected_residual)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [32, 5])
def test_gated(ops: FlashInferOps, activation: Activation, width: int) -> None:
    """Also of a width whose halves kernels cannot read in whole vectors."""
    rows = random(3, 2 * width)
    torch.testing.assert_close(ops.gated(rows.clone(), activation), PLAIN.gated(rows.clone(), activation))


def test_the_rest_is_left_to_others(ops: FlashInferOps) -> None:
    weight, rows = random(8, 16), random(3, 16, seed=1)
    torch.testing.assert_close(ops.linear([weight], None)(rows), rows @ weight.T)
    vectors, angles = random(3, 2, 8), random(3, 1, 8, seed=2)
    expected, rotation = vectors.clone(), Rotation(angles.cos(), angles.sin())
    PLAIN.rotate_(expected, rotation)
    ops.rotate_(vectors, rotation)
    torch.testing.assert_close(vectors, expected)


@pytest.mark.parametrize("broken", ["rms_norm", "add_rms_norm", "silu_and_mul", "gelu_tanh_and_mul"])
def test_kernels_that_cannot_be_compiled_are_told_at_the_start_and_others_serve(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("cublasLt.h: No such file")

    monkeypatch.setattr(flashinfer_library, "why_unavailable", lambda device: None)
    monkeypatch.setattr(triton_support, "why_unavailable", lambda device: "here is none")
    asked = torch.device("cpu"), torch.bfloat16, PLAIN
    monkeypatch.setattr(flashinfer_library, "load", fake_flashinfer)
    assert isinstance(choose._cuda_ops(*asked), FlashInferOps)
    changed: dict[str, Any] = {broken: fail}
    monkeypatch.setattr(flashinfer_library, "load", lambda: replace(fake_flashinfer(), **changed))
    assert choose._cuda_ops(*asked) is PLAIN
    assert "cublasLt.h: No such file" in caplog.text
