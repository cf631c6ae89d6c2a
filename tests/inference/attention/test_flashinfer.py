"""FlashInfer attention against dense attention, on a torch implementation of FlashInfer's API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pie_inference.attention.flashinfer import kernels as flashinfer_kernels
from pie_inference.attention.flashinfer.cache_views import CacheViews
from pie_inference.attention.flashinfer.pages import FlashInferAttention
from pie_inference.attention.interface import AttentionSpec, GraphBackend
from pie_inference.attention.torch.pages import TorchAttention
from pie_inference.config import WorkerConfig
from pie_inference.device import flashinfer_library
from pie_inference.device.flashinfer_library import ModuleKey
from pie_inference.errors import BatchError
from pie_inference.execution.direct import DirectExecutor, Executor
from pie_inference.execution.graphs import SIZES, GraphExecutor, Work
from pie_inference.kv_cache.pages import KvCache
from pie_inference.serving.worker import Worker
from testing.attention_oracle import (
    CASES,
    Case,
    Problem,
    Request,
    assert_near,
    assert_same,
    assert_solves,
    filled_cache,
)
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver
from tests.helpers.fake_flashinfer import fake_flashinfer
from tests.inference.execution.test_graphs import PROMPTS, generate

CPU = torch.device("cpu")


def backend(cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec]) -> FlashInferAttention:
    return FlashInferAttention(cache, num_heads, specs, fake_flashinfer())


@pytest.mark.parametrize("case", CASES)
def test_equals_dense_attention(case: str) -> None:
    assert_solves(Problem(CASES[case], torch.float32), backend, CPU)


@pytest.mark.parametrize("case", ["mixed", "masks and windows", "soft caps"])
def test_equals_dense_attention_in_bfloat16(case: str) -> None:
    assert_solves(Problem(CASES[case], torch.bfloat16), backend, CPU)


class FullRows:
    """A problem's layers with the rows that fill its batch up."""

    def __init__(self, problem: Problem, size: int) -> None:
        missing = torch.zeros(len(problem.rows), size - problem.rows.shape[1], *problem.rows.shape[2:])
        self.rows = torch.cat((problem.rows, missing.to(problem.dtype)), 1)
        self.heads = problem.case.num_heads


@pytest.mark.parametrize("case", ["decode one", "decode many", "decode full pages", "windows in decode"])
def test_graph_plans_equal_dense_attention(case: str) -> None:
    problem = Problem(CASES[case], torch.float32)
    cache = filled_cache(problem, CPU)
    full = backend(cache, problem.case.num_heads, problem.case.specs)
    assert full.can_replay(problem.batch)
    assert (cache.positions[problem.new_slots] == -1000).all(), "asking leaves no trace"
    plan = full.graph_plan(16)
    plan.update(problem.batch)
    np.testing.assert_array_equal(cache.positions, problem.positions)
    count = len(problem.new_slots)
    filled = FullRows(problem, 16)
    every = cache.locate(np.arange(problem.num_pages * problem.case.page_size, dtype=np.int32))
    for layer, rows in enumerate(filled.rows):
        out = plan.attend(layer, rows[:, : filled.heads], rows[:, filled.heads :])
        assert_near(out[:count], problem.expected(layer))
        assert torch.isfinite(out).all()
        assert_same(cache.read(layer, every), problem.expected_cache(layer))  # others' slots are as they were


def test_a_graph_plan_serves_one_batch_after_another() -> None:
    """In the same buffers: what a graph recorded stays valid."""
    first, second = (Problem(replace(CASES["decode many"], seed=seed), torch.float32) for seed in (1, 2))
    cache = filled_cache(first, CPU)
    plan = backend(cache, 4, first.case.specs).graph_plan(16)
    plan.update(first.batch)
    buffers = [each.data_ptr() for each in (plan._places, plan._buffers.indices, plan._buffers.indptr)]
    for problem in (first, second):
        every = cache.locate(np.arange(problem.num_pages * problem.case.page_size, dtype=np.int32))
        cache.write(0, every, problem.cached[0])
        plan.update(problem.batch)
        filled = FullRows(problem, 16)
        out = plan.attend(0, filled.rows[0, :, :4], filled.rows[0, :, 4:])
        assert_near(out[: len(problem.new_slots)], problem.expected(0))
    assert buffers == [each.data_ptr() for each in (plan._places, plan._buffers.indices, plan._buffers.indptr)]


@pytest.mark.parametrize("case", ["prefill", "mixed", "holes", "scattered", "masks"])
def test_other_batches_are_not_replayed(case: str) -> None:
    problem = Problem(CASES[case], torch.float32)
    assert not backend(filled_cache(problem, CPU), problem.case.num_heads, problem.case.specs).can_replay(problem.batch)


def test_windows_over_gaps_in_positions_are_not_replayed() -> None:
    problem = Problem(CASES["windows in decode"], torch.float32)
    cache = filled_cache(problem, CPU)
    assert backend(cache, 4, problem.case.specs).can_replay(problem.batch)
    cache.positions[problem.sequences[4].slots[10]] += 1
    assert not backend(cache, 4, problem.case.specs).can_replay(problem.batch)
    assert backend(cache, 4, (AttentionSpec(1.0),)).can_replay(problem.batch)


def test_pages_that_are_listed_too_often_are_not_replayed() -> None:
    requests = (Request(1, 100), *(Request(1, 100, shares=0) for _ in range(8)))
    problem = Problem(Case(requests), torch.float32)
    full = backend(KvCache(problem.shape, problem.num_pages, CPU), 4, problem.case.specs)
    full._graph_capacity = len(problem.batch.kv_pages)
    assert full.can_replay(problem.batch)
    full._graph_capacity -= 1
    assert not full.can_replay(problem.batch)


def test_a_batch_that_breaks_the_protocol_is_refused_and_leaves_no_trace() -> None:
    problem = Problem(CASES["mixed"], torch.float32)
    problem.batch.kv_pages[3] = 10_000
    cache = filled_cache(problem, CPU)
    before = cache.positions.copy()
    full = backend(cache, 4, problem.case.specs)
    for ask in (full.plan, full.can_replay, full.graph_plan(64).update):
        with pytest.raises(BatchError, match="page 10000 does not exist"):
            ask(problem.batch)
    np.testing.assert_array_equal(cache.positions, before)


def test_compiling_plans_every_kind_of_kernel() -> None:
    specs = (AttentionSpec(0.2), AttentionSpec(0.2, 5), AttentionSpec(0.2, None, 3.0))
    problem = Problem(replace(CASES["decode one"], specs=specs), torch.float32)
    cache = KvCache(problem.shape, problem.num_pages, CPU)
    full = backend(cache, 4, specs)
    full.compile()
    assert len(full._kernels._kernels) == 3 * len(specs)
    assert not cache.positions.any()


def test_what_batches_need_beside_attention_is_compiled_too() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nvcc: not found")

    problem = Problem(CASES["decode one"], torch.float32)
    cache = KvCache(problem.shape, problem.num_pages, CPU)
    library = replace(fake_flashinfer(), append=fail)
    with pytest.raises(RuntimeError, match="nvcc: not found"):
        FlashInferAttention(cache, 4, problem.case.specs, library).compile()


def test_layers_that_all_have_windows_get_the_kernels_for_short_texts_too() -> None:
    specs = (AttentionSpec(0.2, 5),)
    problem = Problem(replace(CASES["decode one"], specs=specs), torch.float32)
    full = backend(KvCache(problem.shape, problem.num_pages, CPU), 4, specs)
    full.compile()
    assert len(full._kernels._kernels) == 2 * 3


def test_a_large_batch_leaves_what_graphs_read_where_it_is() -> None:
    """Graphs keep the addresses that they were recorded with."""
    addresses: list[list[int]] = []

    def append(*arguments: object) -> None:
        addresses.append([one.data_ptr() for one in arguments if isinstance(one, Tensor) and one.dtype == torch.int32])

    problem = Problem(CASES["decode one"], torch.float32)
    cache = KvCache(problem.shape, 64, CPU)
    views = CacheViews(cache, replace(fake_flashinfer(), append=append))
    row = torch.zeros(3, 2 * problem.shape.num_kv_heads, problem.shape.head_dim)
    places = views.places(np.arange(3, dtype=np.int32))
    views.write(0, row, places)
    views.places(np.arange(600, dtype=np.int32))
    views.write(0, row, places)
    assert addresses[0] == addresses[1]


def test_each_kernel_names_its_backend() -> None:
    asked: list[ModuleKey] = []

    def causal_backend(key: ModuleKey) -> str:
        asked.append(key)
        return "fa3"

    library = fake_flashinfer(causal_backend)
    specs = (AttentionSpec(0.2), AttentionSpec(0.2, 24, 2.0))
    problem = Problem(replace(CASES["mixed"], specs=specs), torch.float32)

    def make(cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec]) -> FlashInferAttention:
        return FlashInferAttention(cache, num_heads, specs, library)

    assert_solves(problem, make, CPU)
    assert {(key.has_window, key.has_soft_cap) for key in asked} == {(False, False), (True, True)}


def test_it_can_be_recorded() -> None:
    assert issubclass(FlashInferAttention, GraphBackend)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"),
    [(torch.float32, 64, "not float32"), (torch.bfloat16, 80, "heads of 64, 128, 256 dimensions, not of 80")],
)
def test_what_flashinfer_cannot_serve_is_told(dtype: torch.dtype, head_dim: int, reason: str) -> None:
    assert reason in str(flashinfer_library.why_no_attention(dtype, head_dim))
    assert flashinfer_library.why_no_attention(torch.bfloat16, 64) is None


def test_groups_without_a_kernel_of_their_own_use_tensor_cores() -> None:
    assert [group for group in range(1, 9) if flashinfer_library.decodes_with_tensor_cores(group)] == [4, 5, 6, 7, 8]


class Copied:
    """Stands for the place behind a plan's copy in the stream."""

    def __init__(self, log: list[str], number: int) -> None:
        self._log, self._number = log, number

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self._log.append(f"waited for plan {self._number}")


def test_a_kernel_plans_again_only_when_its_last_plan_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer writes each schedule to the same pinned memory, from which it is copied behind the host's back."""
    log: list[str] = []

    def mark(_: torch.device) -> Copied:
        log.append("planned")
        return Copied(log, log.count("planned"))

    monkeypatch.setattr(flashinfer_kernels, "mark_stream", mark)
    problem = Problem(CASES["decode many"], torch.float32)
    full = backend(filled_cache(problem, CPU), 4, problem.case.specs)
    for _ in range(3):
        full.plan(problem.batch)
    assert log == ["planned", "waited for plan 1", "planned", "waited for plan 2", "planned"]


class AgainRecorder:
    """Does the work again for each replay."""

    sizes = SIZES

    def warm_up(self, work: Work) -> None:
        work()

    def record(self, work: Work) -> Work:
        return work


@pytest.mark.parametrize("window", [None, 24])
def test_a_worker_gives_the_same_tokens_with_it(tmp_path: Path, window: int | None) -> None:
    """From prompts of several lengths, with a fork, by recorded graphs and without: as torch attention does."""
    make_checkpoint(tmp_path)
    texts = []
    for kind in ("torch", "flashinfer", "recorded"):
        worker = Worker(WorkerConfig(tmp_path, "model", dtype="float32", attention="torch", pages=96, embeds=1024))
        served = worker._served
        specs = [replace(spec, window=window) for spec in served.model.config.attention]
        made = TorchAttention(served.cache, 4, specs) if kind == "torch" else backend(served.cache, 4, specs)
        executor: Executor = DirectExecutor(served.model, made, served.embeds)
        if kind == "recorded":
            assert isinstance(made, FlashInferAttention)
            recorder, ranks = AgainRecorder(), served.ranks
            executor = GraphExecutor(executor, served.model, made, served.embeds, served.adapters, recorder, ranks)
        worker._served = replace(served, executor=executor)
        texts.append(generate(Driver(worker.run, "model"), PROMPTS, 20))
        assert not isinstance(executor, GraphExecutor) or {size for size, _ in executor._recordings} == {4, 8}
    assert texts[0] == texts[1] == texts[2]
