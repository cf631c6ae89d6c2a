"""The gated delta rule and its convolution: all implementations against float64, and transformers' functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pie_inference.assembly.kernels import choose_recurrences
from pie_inference.cpu_kernels.library import Library
from pie_inference.recurrence.cpu_recurrences import CpuRecurrences
from pie_inference.recurrence.interface import NONE, Recurrences, Runs
from pie_inference.recurrence.torch_recurrences import TorchRecurrences
from testing.recurrence_oracle import (
    SIZES,
    Problem,
    Sizes,
    assert_equals_definition,
    convolved,
    few_rows,
    make_problem,
    ruled,
)
from testing.triton_interpreter import Interpreter
from tests.helpers.tiers import corpus

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
LARGE = Sizes(1, 2, 128, 128)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [3, 16, 64])
def test_products_of_many_rows_equal_single_rows(sizes: Sizes, dtype: torch.dtype, chunk: int) -> None:
    assert_equals_definition(TorchRecurrences(chunk), sizes, make_problem(sizes, dtype), dtype, CPU)


@pytest.mark.parametrize("sizes", [*SIZES, LARGE])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_for_cpus(sizes: Sizes, dtype: torch.dtype, library: Library) -> None:
    ours = CpuRecurrences(library, dtype)
    assert_equals_definition(ours, sizes, make_problem(sizes, dtype), dtype, CPU)
    assert_equals_definition(ours, sizes, decodes(sizes, dtype), dtype, CPU)


def decodes(sizes: Sizes, dtype: torch.dtype) -> Problem:
    """One row of each text: in place, to another slot, of a new text, of one whose state nobody needs."""
    return make_problem(sizes, dtype, counts=[1] * 4, reads=[3, 4, NONE, 5], last=[3, 6, 7, NONE], within={})


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_by_torch(dtype: torch.dtype) -> None:
    assert_equals_definition(TorchRecurrences(), SIZES[0], decodes(SIZES[0], dtype), dtype, CPU)


def with_triton(sizes: Sizes, kind: str) -> None:
    from pie_inference.recurrence.triton_recurrences import TritonRecurrences

    dtype, ours = getattr(torch, kind), TritonRecurrences()
    assert_equals_definition(ours, sizes, few_rows(sizes, dtype), dtype, CPU)
    assert_equals_definition(ours, sizes, decodes(sizes, dtype), dtype, CPU)


IN_TRITON = [(sizes, dtype) for dtype in ("float32", "bfloat16") for sizes in SIZES]


@pytest.mark.parametrize("case", corpus(IN_TRITON, kind=lambda one: one if one[1] == "float32" else one[1]))
def test_triton(interpreter: Interpreter, case: tuple[Sizes, str]) -> None:
    interpreter.call(with_triton, *case)


def test_torch_equals_the_functions_of_transformers() -> None:
    assert_equals_transformers(TorchRecurrences())


def test_the_kernels_equal_the_functions_of_transformers(library: Library) -> None:
    assert_equals_transformers(CpuRecurrences(library, torch.float32))


def assert_equals_transformers(recurrences: Recurrences) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

    sizes = SIZES[0]
    problem = make_problem(sizes, torch.float32, counts=[100], reads=[3], last=[4], within={}).to(torch.float32, CPU)
    theirs_mixed = theirs.causal_conv1d_fn(
        torch.cat([problem.inputs[3], problem.mixed]).T[None], problem.taps.T, activation="silu"
    )[0, :, sizes.width - 1 :].T
    mixed = convolved(recurrences, problem)
    torch.testing.assert_close(mixed, theirs_mixed, rtol=1e-5, atol=1e-5)
    parts = torch.split(mixed, [32, 32, 96], 1)
    query, key, value = (
        torch.unflatten(part, 1, (-1, dim))[None] for part, dim in zip(parts, (16, 16, 24), strict=True)
    )
    before, decay, beta = problem.states[3:4].clone(), problem.decay[None], problem.beta[None]
    ours = ruled(recurrences, sizes, replace(problem, mixed=mixed))
    for function in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        output, state = function(
            query, key, value, g=decay, beta=beta, initial_state=before, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        torch.testing.assert_close(ours, output[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(problem.states[4], state[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_text_has_the_same_bits_however_it_is_cut(dtype: torch.dtype, library: Library) -> None:
    """On a CPU: at once, in parts, row by row, and beside others."""
    sizes, ours = LARGE, CpuRecurrences(library, dtype)
    whole = make_problem(sizes, dtype, counts=[50], reads=[NONE], last=[1], within={}).to(dtype, CPU)
    expected = outputs(ours, sizes, whole)
    for cuts in ([17, 33], [16, 32, 2], [1] * 50):
        given, found, first = whole.to(dtype, CPU), [], 0
        for count in cuts:
            reads = NONE if first == 0 else 1
            rows = slice(first, first + count)
            part = replace(given, mixed=given.mixed[rows], decay=given.decay[rows], beta=given.beta[rows])
            found.append(outputs(ours, sizes, replace(part, runs=one_text(count, reads, 1))))
            first += count
        assert torch.equal(torch.cat(found), expected)
        assert torch.equal(given.states[1], whole.states[1])
        assert torch.equal(given.inputs[1], whole.inputs[1])
    beside = make_problem(sizes, dtype, counts=[3, 50, 20], reads=[2, NONE, 3], last=[2, 1, 3], within={}).to(
        dtype, CPU
    )
    beside = replace(beside, taps=whole.taps)
    for name in ("mixed", "decay", "beta"):
        getattr(beside, name)[3:53] = getattr(whole, name)
    assert torch.equal(outputs(ours, sizes, beside)[3:53], expected)


def outputs(found: Recurrences, sizes: Sizes, problem: Problem) -> Tensor:
    return torch.cat([convolved(found, problem), ruled(found, sizes, problem).flatten(1)], 1)


def one_text(count: int, reads: int, last: int) -> Runs:
    return Runs.make([count], [reads], [NONE] * (count - 1) + [last], CPU)


def test_threads_share_heads(library: Library) -> None:
    sizes, before = Sizes(4, 8, 128, 128), torch.get_num_threads()
    problem = make_problem(sizes, torch.float32)
    try:
        torch.set_num_threads(4)
        assert_equals_definition(CpuRecurrences(library, torch.float32), sizes, problem, torch.float32, CPU)
    finally:
        torch.set_num_threads(before)


def test_what_is_chosen_for_a_cpu(library: Library) -> None:
    assert isinstance(choose_recurrences("auto", CPU, torch.float32, library), CpuRecurrences)
    assert isinstance(choose_recurrences("auto", CPU, torch.float64, None), TorchRecurrences)
