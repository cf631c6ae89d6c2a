"""Every attention backend against dense float64 attention over random page layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pie_inference.attention import layout
from pie_inference.attention.cpu.pages import CpuAttention
from pie_inference.attention.interface import AttentionSpec
from pie_inference.attention.torch.pages import TorchAttention
from pie_inference.cpu_kernels.library import find_library
from pie_inference.kv_cache.pages import KvCache
from testing.attention_oracle import CASES, Case, MakeBackend, Problem, Request, assert_solves
from tests.helpers.kernels import ISAS
from tests.helpers.tiers import pairs

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


BACKENDS = ("torch", *ISAS)


@pytest.fixture(scope="module", params=BACKENDS)
def make_backend(request: pytest.FixtureRequest, kernel_cache: Path) -> MakeBackend:
    if request.param == "torch":
        return TorchAttention
    library = find_library("auto", kernel_cache, CPU, request.param)
    if library is None:
        pytest.skip("the kernels cannot be built here")

    def make(cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec]) -> CpuAttention:
        return CpuAttention(cache, num_heads, specs, library)

    return make


@pytest.mark.parametrize(("make_backend", "case", "dtype"), pairs(BACKENDS, CASES, DTYPES), indirect=["make_backend"])
def test_backends_equal_dense_attention(case: str, make_backend: MakeBackend, dtype: str) -> None:
    assert_solves(Problem(CASES[case], DTYPES[dtype]), make_backend, CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["mixed", "masks and windows", "soft caps", "decode long", "forks"])
def test_sinks_take_weight(case: str, make_backend: MakeBackend, dtype: str) -> None:
    plain = CASES[case]
    with_sinks = replace(plain, specs=tuple(replace(spec, sinks=True) for spec in plain.specs))
    assert_solves(Problem(with_sinks, DTYPES[dtype]), make_backend, CPU)


@pytest.mark.parametrize("case", ["decode many", "mixed", "masks and windows"])
def test_pages_are_gathered_in_groups_of_any_size(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_PAGES", 4)
    assert_solves(Problem(CASES[case], torch.float32), TorchAttention, CPU)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


_WINDOW = AttentionSpec(0.1, 9_000)
THREADED = {
    "keys are split": Case((Request(1, 20_000),), 4, 1, specs=(AttentionSpec(0.1), _WINDOW)),
    "some keys are split": Case((Request(1, 12_000, "holes"), Request(1, 30), Request(3, 8_000, mask="blind")), 4, 1),
    "all heads are split": Case(
        (Request(1, 9_000), Request(1, 7_000, "holes"), Request(40, 60)),
        specs=(AttentionSpec(0.1, None, 30.0), _WINDOW),
    ),
    "forks": replace(CASES["forks"], num_heads=9, num_kv_heads=3),
    "forks of one head": replace(CASES["forks"], num_kv_heads=1, specs=(AttentionSpec(0.1), AttentionSpec(0.1, 100))),
    "tiles": Case((Request(500, 600), Request(1, 900)), specs=(AttentionSpec(0.2), AttentionSpec(0.2, 64))),
}


@pytest.mark.parametrize(
    ("make_backend", "case", "dtype"), pairs(BACKENDS, THREADED, DTYPES), indirect=["make_backend"]
)
@pytest.mark.usefixtures("three_threads")
def test_threads_share_the_work(case: str, make_backend: MakeBackend, dtype: str) -> None:
    assert_solves(Problem(THREADED[case], DTYPES[dtype]), make_backend, CPU)
