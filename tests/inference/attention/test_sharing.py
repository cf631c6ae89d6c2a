"""Decodes that begin with the same pages go through them together on a CPU. In one thread, results are those of each
alone, bit by bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from pie_inference.attention.cpu.pages import CpuAttention
from pie_inference.attention.interface import AttentionSpec
from pie_inference.cpu_kernels.library import Library, find_library
from testing.attention_oracle import CASES, Case, Problem, Request, filled_cache, run

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def library(kernel_cache: Path) -> Library:
    found = find_library("auto", kernel_cache, CPU)
    if found is None:
        pytest.skip("the kernels cannot be built here")
    return found


def _apart(problem: Problem) -> Problem:
    """The same problem with a copy of each page for each sequence that sees it."""
    size, pages = problem.case.page_size, problem.batch.kv_pages.copy()
    seen: set[int] = set()
    copied: list[int] = []
    for place, page in enumerate(pages.tolist()):
        if page in seen:
            pages[place] = problem.num_pages + len(copied)
            copied.append(page)
        seen.add(page)
    slots = (np.array(copied)[:, None] * size + np.arange(size)).reshape(-1)
    other = copy.copy(problem)
    other.num_pages += len(copied)
    other.batch = msgspec.structs.replace(problem.batch, kv_pages=pages)
    other.cached = torch.cat((problem.cached, problem.cached[:, slots]), 1)
    other.positions = np.concatenate((problem.positions, problem.positions[slots]))
    return other


def _shared_keys(problem: Problem, library: Library) -> list[tuple[int, int, int]]:
    """Of each shared tile of a layer without a window: its queries, and the ranks of its keys."""
    backend = CpuAttention(filled_cache(problem, CPU), problem.case.num_heads, problem.case.specs, library)
    tiles = next(one for _, one in vars(backend.plan(problem.batch))["_layers"] if not one.structure.window)
    words = tiles.arrays[0][1][: tiles.structure.num_shared]
    return [(int(queries), int(first), int(end)) for queries, first, end in words[:, 2:5]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["forks", "forks, no groups", "windows over forks"])
def test_forks_compute_what_they_compute_alone(case: str, dtype: torch.dtype, library: Library) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with several, keys are split by the work of a batch
    try:
        problem = Problem(replace(CASES[case], seed=3), dtype)
        together, alone = (
            run(one, lambda cache, heads, specs: CpuAttention(cache, heads, specs, library), CPU)
            for one in (problem, _apart(problem))
        )
        assert _shared_keys(problem, library)
        assert not _shared_keys(_apart(problem), library)
        for output, expected in zip(together.outputs, alone.outputs, strict=True):
            assert torch.equal(output, expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([Request(1, 700), Request(1, 650, shares=0), Request(1, 690, shares=0)], [(3, 0, 640)]),
        ([Request(1, 700), Request(1, 650, shares=0), Request(1, 300, shares=0)], [(3, 0, 288), (2, 288, 640)]),
        ([Request(1, 300), Request(1, 300), Request(1, 300, shares=1), Request(1, 299, shares=0)], [(2, 0, 288)] * 2),
        ([Request(1, 300), Request(2, 300, shares=0)], []),
        ([Request(1, 120), Request(1, 125, shares=0)], []),
        ([Request(1, 160), Request(1, 160, mask="random"), Request(1, 161, shares=0)], [(2, 0, 128)]),
        ([Request(0, 0), Request(1, 1), Request(1, 200)], []),
    ],
    ids=["all", "two of three go on", "two pairs", "a prompt", "too few keys", "a mask", "nothing"],
)
def test_what_is_shared(requests: list[Request], expected: list[tuple[int, int, int]], library: Library) -> None:
    problem = Problem(Case(tuple(requests), specs=(AttentionSpec(0.2),)), torch.float32)
    assert _shared_keys(problem, library) == expected
