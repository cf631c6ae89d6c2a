"""The checks of `gpu_check`, by path. Each path yields names and functions to run. The problems and their solutions in
float64 are those of the tests (`testing/`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from pie_inference.ops.interface import GroupedLinear
from pie_inference.recurrence.interface import Recurrences

from .results import Checks, Errors, Setting, Unavailable

BOTH_FORMATS = (torch.float32, torch.bfloat16)
HEAD_DIMS = (64, 128, 256)  # those that FlashInfer supports
PRODUCT_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
EXPERT_ROWS = (1, 0, 70, 16, 0)
Case = TypeVar("Case")


def _first(setting: Setting, cases: Sequence[Case]) -> Sequence[Case]:
    return cases[: setting.cases or None]


# ---- attention -------------------------------------------------------------------------------------------------------


def torch_attention(setting: Setting) -> Checks:
    from pie_inference.attention.torch.pages import TorchAttention

    yield from _attention(setting, TorchAttention, BOTH_FORMATS)


def triton_attention(setting: Setting) -> Checks:
    yield from _triton_attention(setting, (torch.bfloat16, torch.float16))


def triton_attention_in_float32(setting: Setting) -> Checks:
    yield from _triton_attention(setting, (torch.float32,))


def _triton_attention(setting: Setting, dtypes: Sequence[torch.dtype]) -> Checks:
    """Large GPUs split the keys of most cases."""
    prepare_triton(setting)
    from pie_inference.attention.triton.pages import TritonAttention

    yield from _attention(setting, TritonAttention, dtypes)


def flashinfer_attention(setting: Setting) -> Checks:
    library = _flashinfer(setting)
    from pie_inference.attention.flashinfer.pages import FlashInferAttention

    def make(cache: Any, num_heads: int, specs: Any) -> Any:
        return FlashInferAttention(cache, num_heads, specs, library.load())

    yield from _attention(setting, make, (torch.bfloat16, torch.float16), head_dims=HEAD_DIMS)


def _attention(setting: Setting, make: Any, dtypes: Sequence[torch.dtype], head_dims: Sequence[int] = ()) -> Checks:
    from testing.attention_oracle import CASES

    for name in _first(setting, list(CASES)):
        case = CASES[name]
        if head_dims and case.head_dim not in head_dims:
            case = replace(case, head_dim=head_dims[0])
        for dtype in dtypes:
            yield f"{name}, {_short(dtype)}", functools.partial(_attend, case, dtype, make, setting.device)


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


def _plain_ops(device: torch.device, dtype: torch.dtype) -> Any:
    from pie_inference.ops.torch_ops import TorchOps

    return TorchOps(device, dtype)


def _ops(setting: Setting, make: Any) -> Checks:
    from testing.ops_oracle import CHECKS, TOLERANCE

    def run(name: str, dtype: torch.dtype) -> Errors:
        error = CHECKS[name](make(setting.device, dtype), dtype, setting.device)
        return Errors(relative=error, allowed=TOLERANCE[dtype])

    for name in _first(setting, list(CHECKS)):
        for dtype in BOTH_FORMATS:
            yield f"{name}, {_short(dtype)}", functools.partial(run, name, dtype)


def quantized_linears(setting: Setting) -> Checks:
    """Checks layers in all forms, also those that only checkpoints have, alone and as experts."""
    from testing.quantized_weights import KINDS

    for dtype in reversed(BOTH_FORMATS):
        for name in KINDS:
            for rows in (1, 16, 100):
                run = functools.partial(_quantized, name, dtype, rows, setting.device)
                yield f"{name}, {_short(dtype)}, {rows} rows", run
    for name in KINDS:
        yield f"{name}, layers of experts", functools.partial(_grouped, name, setting.device)


def _quantized(name: str, dtype: torch.dtype, rows: int, device: torch.device) -> Errors:
    """Compares a quantized layer with the product with its dequantized weights."""
    from pie_inference.quantization.choose import make_linear
    from testing.quantized_weights import random_weight

    inputs = torch.randn(rows, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    stored = random_weight(name, 128, 256, dtype)
    actual = make_linear(stored.to(device), None, None)(inputs.to(device))
    return compare(actual, inputs.double() @ stored.dequantize(torch.float64).T, 2 * PRODUCT_ERROR[dtype])


def _grouped(name: str, device: torch.device) -> Errors:
    """Compares quantized layers that go together with the products with their dequantized weights."""
    from pie_inference.layers.grouped import group
    from pie_inference.quantization.choose import make_linear
    from testing.quantized_weights import random_weight

    whole = random_weight(name, 128 * len(EXPERT_ROWS), 256, torch.bfloat16)
    stored = [whole.narrowed(0, 128 * number, 128) for number in range(len(EXPERT_ROWS))]
    layers = [make_linear(each.to(device), None, None) for each in stored]
    return _of_experts(group(layers), [each.dequantize(torch.float64) for each in stored], device)


def experts(setting: Setting) -> Checks:
    """Checks torch's product of all experts of a layer, whose weights are not quantized."""
    yield "bfloat16", functools.partial(_experts, setting.device)


def _experts(device: torch.device) -> Errors:
    from pie_inference.layers.grouped import _Stacked, has_grouped_product

    weights = torch.randn(len(EXPERT_ROWS), 128, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    if not has_grouped_product(device, weights.dtype, weights.shape[1:]):
        raise Unavailable("torch has no product of several matrices for this device: experts run one by one")
    return _of_experts(_Stacked(weights.to(device)), [*weights.double()], device)


def _of_experts(layers: GroupedLinear, weights: Sequence[Tensor], device: torch.device) -> Errors:
    """Compares layers, each with rows of its own, with the products with their weights."""
    inputs = torch.randn(sum(EXPERT_ROWS), 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    ends = torch.tensor(EXPERT_ROWS, device=device).cumsum(0).to(torch.int32)
    own = zip(torch.split(inputs.double(), list(EXPERT_ROWS)), weights, strict=True)
    exact = torch.cat([rows @ each.T for rows, each in own])
    return compare(layers(inputs.to(device), ends), exact, 2 * PRODUCT_ERROR[torch.bfloat16])


# ---- recurrences -----------------------------------------------------------------------------------------------------


def recurrences(setting: Setting) -> Checks:
    prepare_triton(setting)
    from pie_inference.recurrence.torch_recurrences import TorchRecurrences
    from pie_inference.recurrence.triton_recurrences import TritonRecurrences
    from testing.recurrence_oracle import SIZES, Sizes

    for sizes in _first(setting, [*SIZES, Sizes(1, 2, 128, 128)]):
        for name, found in (("triton", TritonRecurrences()), ("torch", TorchRecurrences())):
            for dtype in BOTH_FORMATS:
                run = functools.partial(_recur, found, sizes, dtype, setting.device)
                yield f"{name}, heads of {sizes.key_dim} and {sizes.value_dim}, {_short(dtype)}", run


def _recur(found: Recurrences, sizes: Any, dtype: torch.dtype, device: torch.device) -> Errors:
    from testing.recurrence_oracle import assert_equals_definition, few_rows

    assert_equals_definition(found, sizes, few_rows(sizes, dtype), dtype, device)
    return Errors()


def compare(actual: Tensor, expected: Tensor, allowed: float) -> Errors:
    difference = (actual.cpu().double() - expected).abs()
    relative = float(difference.square().mean().sqrt() / expected.square().mean().sqrt())
    return Errors(float(difference.max()), relative, allowed)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
