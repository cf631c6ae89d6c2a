"""The checks of `gpu_check`, by path. Each path yields names and functions to run. The problems and their solutions in
float64 are those of the tests (`testing/`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .results import Checks, Errors, Setting, Unavailable

BOTH_FORMATS = (torch.float32, torch.bfloat16)
HEAD_DIMS = (64, 128, 256)  # those that FlashInfer supports
PRODUCT_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def _first(setting: Setting, names: Sequence[str]) -> Sequence[str]:
    return names[: setting.cases or None]


# ---- attention -------------------------------------------------------------------------------------------------------


def torch_attention(setting: Setting) -> Checks:
    from pie_inference.attention.torch.pages import TorchAttention

    yield from _attention(setting, TorchAttention, BOTH_FORMATS)


def triton_attention(setting: Setting) -> Checks:
    prepare_triton(setting)
    from pie_inference.attention.triton.pages import TritonAttention

    yield from _attention(setting, TritonAttention, (*BOTH_FORMATS, torch.float16))
    split = functools.partial(TritonAttention, processors=10_000)
    yield from _attention(setting, split, BOTH_FORMATS, ", keys split")


def flashinfer_attention(setting: Setting) -> Checks:
    library = _flashinfer(setting)
    from pie_inference.attention.flashinfer.pages import FlashInferAttention

    def make(cache: Any, num_heads: int, specs: Any) -> Any:
        return FlashInferAttention(cache, num_heads, specs, library.load())

    yield from _attention(setting, make, (torch.bfloat16, torch.float16), head_dims=HEAD_DIMS)


def _attention(
    setting: Setting, make: Any, dtypes: Sequence[torch.dtype], also: str = "", head_dims: Sequence[int] = ()
) -> Checks:
    from testing.attention_oracle import CASES

    for name in _first(setting, list(CASES)):
        case = CASES[name]
        if head_dims and case.head_dim not in head_dims:
            case = replace(case, head_dim=head_dims[0])
        for dtype in dtypes:
            yield f"{name}, {_short(dtype)}{also}", functools.partial(_attend, case, dtype, make, setting.device)


def _attend(case: Any, dtype: torch.dtype, make: Any, device: torch.device) -> Errors:
    from testing.attention_oracle import Problem, assert_near, root_mean_square, run

    problem = Problem(case, dtype)
    solution = run(problem, make, device)
    most = relative = 0.0
    for layer, output in enumerate(solution.outputs):
        expected, actual = problem.expected(layer), output.cpu().double()
        most = max(most, float((actual - expected).abs().max()) if actual.numel() else 0.0)
        relative = max(relative, root_mean_square(actual - expected) / max(root_mean_square(expected), 1e-3))
        assert_near(output, expected)
    return Errors(most, relative)


def _flashinfer(setting: Setting) -> Any:
    from pie_inference.device import flashinfer_library as library

    reason = library.why_unavailable(setting.device) if setting.is_gpu else "FlashInfer runs on GPUs"
    if reason is not None:
        raise Unavailable(reason)
    return library


def prepare_triton(setting: Setting) -> None:
    from pie_inference.device import triton_support

    if not setting.is_gpu and triton_support.is_installed():
        from testing import triton_interpreter

        triton_interpreter.prepare()
    reason = triton_support.why_unavailable(setting.device)
    if reason is not None:
        raise Unavailable(reason)


# ---- operations ------------------------------------------------------------------------------------------------------


def torch_ops(setting: Setting) -> Checks:
    yield from _ops(setting, _plain_ops)


def triton_ops(setting: Setting) -> Checks:
    prepare_triton(setting)
    from pie_inference.ops.triton_ops import TritonOps

    yield from _ops(setting, lambda device, dtype: TritonOps(_plain_ops(device, dtype)))


def flashinfer_ops(setting: Setting) -> Checks:
    library = _flashinfer(setting)
    from pie_inference.ops.flashinfer_ops import FlashInferOps

    def make(device: torch.device, dtype: torch.dtype) -> Any:
        return FlashInferOps(library.load(), _plain_ops(device, dtype))

    yield from _ops(setting, make, (torch.bfloat16, torch.float16))


def _plain_ops(device: torch.device, dtype: torch.dtype) -> Any:
    from pie_inference.ops.torch_ops import TorchOps

    return TorchOps(device, dtype)


def _ops(setting: Setting, make: Any, dtypes: Sequence[torch.dtype] = BOTH_FORMATS) -> Checks:
    from testing.ops_oracle import CHECKS, TOLERANCE

    def run(name: str, dtype: torch.dtype) -> Errors:
        error = CHECKS[name](make(setting.device, dtype), dtype, setting.device)
        return Errors(relative=error, allowed=TOLERANCE[dtype])

    for name in _first(setting, list(CHECKS)):
        for dtype in dtypes:
            yield f"{name}, {_short(dtype)}", functools.partial(run, name, dtype)


def quantized_linears(setting: Setting) -> Checks:
    from pie_inference.quantization.names import FORMATS

    for name in FORMATS:
        for dtype in BOTH_FORMATS:
            for rows in (1, 16, 100):
                run = functools.partial(_quantized, name, dtype, rows, setting.device)
                yield f"{name}, {_short(dtype)}, {rows} rows", run
    for name in FORMATS:
        yield f"{name}, layers of experts", functools.partial(_grouped, name, setting.device)


def _quantized(name: str, dtype: torch.dtype, rows: int, device: torch.device) -> Errors:
    """Compares a quantized layer with the product with its dequantized weights."""
    from pie_inference.quantization.choose import make_linear
    from pie_inference.quantization.formats import quantize
    from pie_inference.quantization.names import FORMATS

    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(64, 256, generator=generator) / 16 for _ in range(2)]
    inputs = torch.randn(rows, 256, generator=generator).to(dtype)
    stored = quantize(parts, FORMATS[name], dtype, device)
    actual = make_linear(stored, None, None)(inputs.to(device))
    exact = stored.dequantize(torch.float64).cpu()
    return compare(actual, inputs.double() @ exact.T, 2 * PRODUCT_ERROR[dtype])


def _grouped(name: str, device: torch.device) -> Errors:
    """Compares quantized layers that go together with the products with their dequantized weights."""
    from pie_inference.layers.grouped import group
    from pie_inference.quantization.choose import make_linear
    from pie_inference.quantization.formats import quantize
    from pie_inference.quantization.names import FORMATS

    generator, counts = torch.Generator().manual_seed(0), (1, 0, 70, 16, 0)
    inputs = torch.randn(sum(counts), 256, generator=generator).bfloat16()
    parts = [torch.randn(128, 256, generator=generator) / 16 for _ in counts]
    stored = [quantize([part], FORMATS[name], torch.bfloat16, device) for part in parts]
    ends = torch.tensor(counts, device=device).cumsum(0).to(torch.int32)
    actual = group([make_linear(each, None, None) for each in stored])(inputs.to(device), ends)
    own = zip(torch.split(inputs.double(), list(counts)), stored, strict=True)
    exact = torch.cat([rows @ each.dequantize(torch.float64).cpu().T for rows, each in own])
    return compare(actual, exact, 2 * PRODUCT_ERROR[torch.bfloat16])


def compare(actual: Tensor, expected: Tensor, allowed: float) -> Errors:
    difference = (actual.cpu().double() - expected).abs()
    relative = float(difference.square().mean().sqrt() / expected.square().mean().sqrt())
    return Errors(float(difference.max()), relative, allowed)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
