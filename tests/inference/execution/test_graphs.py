"""Decode batches by recorded graphs equal those that run directly. The recorder of the tests runs the same work on the
same buffers once more for each replay, as a graph does, and refuses what a graph would not notice."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from pie_inference.adapters.products.torch_products import TorchProducts
from pie_inference.attention.interface import AttentionPlan, GraphBackend
from pie_inference.attention.torch.pages import TorchAttention
from pie_inference.config import WorkerConfig
from pie_inference.execution import graphs as cuda_graphs
from pie_inference.execution.direct import DirectExecutor
from pie_inference.execution.graphs import GraphExecutor, Work
from pie_inference.kv_cache.pages import KvCache
from pie_inference.protocol import DropAdapter, Forward, LoadAdapter, SampleResult
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, ints
from tests.helpers.adapters import make_adapter
from tests.helpers.kernels import needs_kernels


class Recordable:
    """Torch attention with graph plans: it fills batches up with sequences of one key, in the cache's last page."""

    def __init__(self, backend: TorchAttention, cache: KvCache) -> None:
        self.plan = backend.plan
        self._backend, self._cache = backend, cache
        self.updates: list[int] = []

    def can_replay(self, batch: Forward) -> bool:
        return bool((np.diff(batch.q_indptr) == 1).all()) and batch.mask_indptr is None

    def graph_plan(self, size: int) -> GraphPlanOfTests:
        return GraphPlanOfTests(size, self)

    def filled(self, batch: Forward, size: int) -> AttentionPlan:
        """Missing rows go to slots of the last page of the pool, which the tests leave alone."""
        self.updates.append(size)
        missing = size - len(batch.q_slots)
        page = self._cache.num_pages - 1
        more = ints(range(missing))
        ones = np.ones(missing, np.int32)
        filled = replace_arrays(
            batch,
            q_indptr=np.concatenate([batch.q_indptr, batch.q_indptr[-1] + 1 + more]),
            q_slots=np.concatenate([batch.q_slots, page * 16 + more]),
            q_positions=np.concatenate([batch.q_positions, 0 * more]),
            kv_indptr=np.concatenate([batch.kv_indptr, batch.kv_indptr[-1] + 1 + more]),
            kv_pages=np.concatenate([batch.kv_pages, page * ones]),
            kv_begins=np.concatenate([batch.kv_begins, more]),
            kv_ends=np.concatenate([batch.kv_ends, 1 + more]),
            dense=np.concatenate([batch.dense, ones == 0]),
        )
        return self._backend.plan(filled)


def replace_arrays(batch: Forward, **changes: np.ndarray) -> Forward:
    values = {name: getattr(batch, name) for name in batch.__struct_fields__}
    return Forward(**{**values, **{name: array.astype(values[name].dtype) for name, array in changes.items()}})


class GraphPlanOfTests:
    def __init__(self, size: int, backend: Recordable) -> None:
        self.size, self._backend = size, backend
        self._plan: AttentionPlan

    def update(self, batch: Forward) -> None:
        self._plan = self._backend.filled(batch, self.size)

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        return self._plan.attend(layer, query, key_value)


class FakeRecorder:
    """Replays by doing the work again, and like a graph does not keep it. It keeps track of what happens when."""

    def __init__(self, error: Exception | None = None, most: int = 0) -> None:
        """`error`: what is raised once `most` graphs are recorded."""
        self.sizes = cuda_graphs.SIZES
        self.recorded = self.replayed = 0
        self._error, self._most = error, most

    def warm_up(self, work: Work) -> None:
        """Nothing has to be loaded."""

    def record(self, work: Work) -> Work:
        if self._error is not None and self.recorded == self._most:
            raise self._error
        self.recorded += 1
        kept = weakref.ref(work)

        def replay() -> None:
            self.replayed += 1
            again = kept()
            assert again is not None, "what a graph reads was freed"
            again()

        return replay


@dataclass
class Served:
    worker: Worker
    recorder: FakeRecorder
    backend: Recordable

    def driver(self) -> Driver:
        return Driver(self.worker.run, "model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def make_worker(folder: Path) -> Worker:
    return Worker(WorkerConfig(folder, "model", dtype="float32", attention="torch", pages=96, embeds=1024))


@pytest.fixture
def make_served(folder: Path) -> Callable[..., Served]:
    def make(recorder: FakeRecorder | None = None, capturable: bool = True) -> Served:
        return served_by_graphs(folder, recorder or FakeRecorder(), capturable)

    return make


def served_by_graphs(folder: Path, recorder: FakeRecorder, capturable: bool = True) -> Served:
    worker = make_worker(folder)
    served = worker._served
    model: Any = Incapable(served.model) if not capturable else served.model
    torch_attention = TorchAttention(served.cache, 4, served.model.config.attention)
    backend = Recordable(torch_attention, served.cache)
    direct = DirectExecutor(model, backend, served.embeds)
    executor = GraphExecutor(direct, model, backend, served.embeds, served.adapters, recorder, served.ranks)
    worker._served = replace(served, executor=executor)
    return Served(worker, recorder, backend)


class Incapable:
    """A model that says that it cannot be recorded."""

    capturable = False

    def __init__(self, model: Any) -> None:
        self.embed, self.forward, self.logits = model.embed, model.forward, model.logits


def generate(
    driver: Driver, prompts: list[list[int]], steps: int, adapters: list[int] | None = None
) -> list[list[int]]:
    """Greedy tokens of sequences that decode together; every third step leaves the first one out."""
    from testing.worker_batches import sample_batch

    keys = [Keys() for _ in prompts]
    pending, tokens = list(prompts), [list[int]() for _ in prompts]
    for step in range(steps):
        chosen = [n for n in range(len(keys)) if n or step % 3 != 2]
        embed, forward = driver.forward_batch([Extend(keys[n], pending[n]) for n in chosen])
        if adapters is not None:
            forward = msgspec.structs.replace(forward, adapters=ints([adapters[n] for n in chosen]))
        last = np.cumsum([len(pending[n]) for n in chosen]) - 1
        result = driver.ask(SampleResult, embed, forward, sample_batch(ints(driver.outputs + last)))
        for n, token in zip(chosen, result.tokens.tolist(), strict=True):
            tokens[n].append(token)
            pending[n] = [token]
    return tokens


PROMPTS = [[7, 8, 9], list(range(40)), [5], list(range(100, 117)), [1, 2]]


def test_replayed_batches_equal_direct_ones(make_served: Callable[..., Served], folder: Path) -> None:
    served = make_served()
    expected = generate(Driver(make_worker(folder).run, "model"), PROMPTS, 12)
    assert generate(served.driver(), PROMPTS, 12) == expected
    assert served.recorder.recorded == 2  # sizes 8 and 4
    assert served.recorder.replayed == 12 - 1 - 2  # all but the prefill and the first of each size


def load_adapters(worker: Worker, folder: Path) -> None:
    for number, rank in enumerate((4, 8)):
        made = make_adapter(folder / f"adapter-{rank}", rank=rank, seed=number)
        assert worker.load_adapter(LoadAdapter(number, str(made))).error is None


@needs_kernels
def test_steps_with_adapters_are_recorded(make_served: Callable[..., Served], folder: Path, tmp_path: Path) -> None:
    """The graphs serve rows of any adapters, and those that are loaded later into the same form."""
    served, plain = make_served(), make_worker(folder)
    for worker in (served.worker, plain):
        load_adapters(worker, tmp_path)

    def assert_equal(adapters: list[int], steps: int = 8) -> list[list[int]]:
        found = generate(served.driver(), PROMPTS, steps, adapters)
        assert found == generate(Driver(plain.run, "model"), PROMPTS, steps, adapters)
        return found

    first = assert_equal([0, -1, 1, 1, 0])
    assert served.recorder.recorded == 2  # sizes 8 and 4
    assert assert_equal([-1, 1, 0, 1, 1]) != first
    for worker in (served.worker, plain):
        worker.drop_adapter(DropAdapter(0))
        again = make_adapter(tmp_path / "again", rank=6, seed=9)
        assert worker.load_adapter(LoadAdapter(7, str(again))).error is None
    before = served.recorder.replayed
    assert_equal([7, -1, 7, 1, 7])
    assert served.recorder.recorded == 2
    assert served.recorder.replayed == before + 7  # all but the prefill
    assert_equal([-1] * 5)  # has graphs of its own
    assert served.recorder.recorded == 4


@needs_kernels
def test_adapters_of_another_form_are_recorded_anew(make_served: Callable[..., Served], tmp_path: Path) -> None:
    served = make_served()
    load_adapters(served.worker, tmp_path)
    generate(served.driver(), PROMPTS, 8, [0, 1, 0, 1, -1])
    executor = served.worker._served.executor
    assert isinstance(executor, GraphExecutor)
    assert len(executor._recordings) == served.recorder.recorded == 2
    more = make_adapter(tmp_path / "more", rank=40, modules=["mlp.up_proj"])
    assert served.worker.load_adapter(LoadAdapter(2, str(more))).error is None
    generate(served.driver(), PROMPTS, 8, [0, 2, 0, 1, -1])
    assert served.recorder.recorded == 4
    assert len(executor._recordings) == 2, "those of the old form are gone"


def test_products_that_cannot_be_recorded_run_directly(make_served: Callable[..., Served], tmp_path: Path) -> None:
    served = make_served()
    served.worker._served.adapters.layers.running.products = TorchProducts()
    load_adapters(served.worker, tmp_path)
    generate(served.driver(), PROMPTS, 6, [0, 1, 0, 1, -1])
    assert served.recorder.recorded == 0


def test_a_graph_serves_fewer_rows_than_it_has(make_served: Callable[..., Served]) -> None:
    served = make_served()
    generate(served.driver(), PROMPTS, 6)
    assert set(served.backend.updates) == {8, 4}


def test_what_decode_graphs_cannot_hold_runs_directly(make_served: Callable[..., Served]) -> None:
    served = make_served()
    driver = served.driver()
    keys = [Keys(), Keys()]
    for _ in range(4):
        driver.run(*driver.forward_batch([Extend(each, [1, 2]) for each in keys]))
        mask = np.ones((1, len(keys[0].slots) + 1), bool)
        driver.run(*driver.forward_batch([Extend(keys[0], [3], mask)]))
    assert served.recorder.recorded == 0


def test_too_many_rows_run_directly(make_served: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "SIZES", (1, 2))
    served = make_served()
    generate(served.driver(), PROMPTS, 5)
    assert served.recorder.recorded == 0


def test_a_model_that_cannot_be_recorded_runs_directly(make_served: Callable[..., Served], folder: Path) -> None:
    served = make_served(capturable=False)
    expected = generate(Driver(make_worker(folder).run, "model"), PROMPTS, 6)
    assert generate(served.driver(), PROMPTS, 6) == expected
    assert served.recorder.recorded == 0


def test_after_a_failed_recording_everything_runs_directly(
    make_served: Callable[..., Served], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = make_served(FakeRecorder(RuntimeError("CUDA error: operation not permitted when stream is capturing")))
    expected = generate(Driver(make_worker(folder).run, "model"), PROMPTS, 8)
    assert generate(served.driver(), PROMPTS, 8) == expected
    assert capsys.readouterr().err.count("decode runs kernel by kernel") == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("tried to allocate 20 MiB"), ValueError("of a compiler")])
def test_without_memory_for_one_more_graph_the_others_serve(
    make_served: Callable[..., Served], folder: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    served = make_served(FakeRecorder(error, most=1))
    expected = generate(Driver(make_worker(folder).run, "model"), PROMPTS, 12)
    assert generate(served.driver(), PROMPTS, 12) == expected
    assert served.recorder.replayed == 6  # all of the larger size but the first
    assert capsys.readouterr().err.count("decode of 4 sequences runs kernel by kernel: ") == 1


def test_outputs_go_where_the_batch_says(make_served: Callable[..., Served]) -> None:
    """Only some rows are kept, in any order; other embeds stay as they are."""
    served = make_served()
    executor, embeds, driver = served.worker._served.executor, served.worker._served.embeds.vectors, served.driver()
    keys = [Keys(), Keys(), Keys()]
    for step in range(3):
        embed, forward = driver.forward_batch([Extend(each, [step]) for each in keys])
        driver.run(embed, replace_arrays(forward, out_rows=ints([2, 0]), out_embeds=ints([600, 601])))
    assert served.recorder.replayed == 2
    direct = replace_arrays(forward, out_rows=ints([2, 0]), out_embeds=ints([610, 611]))
    assert isinstance(executor, GraphExecutor)
    with torch.inference_mode():
        executor._direct.forward(direct)
    assert embeds[600:602].any(1).all()
    torch.testing.assert_close(embeds[600:602], embeds[610:612], rtol=1e-5, atol=1e-5)
    assert not embeds[602:610].any()


def test_errors_of_a_batch_leave_the_graph_usable(make_served: Callable[..., Served]) -> None:
    served = make_served()
    driver = served.driver()
    keys = [Keys()]
    for _ in range(3):
        driver.run(*driver.forward_batch([Extend(keys[0], [1])]))
    _, forward = driver.forward_batch([Extend(Keys(list(keys[0].slots), keys[0].position), [1])])
    from tests.inference.serving.test_worker import failure

    assert "page 96 does not exist" in failure(served.worker, replace_arrays(forward, kv_pages=ints([96])))
    before = served.recorder.replayed
    driver.run(*driver.forward_batch([Extend(keys[0], [1])]))
    assert served.recorder.replayed == before + 1


def test_a_wrong_batch_is_no_reason_not_to_record(make_served: Callable[..., Served]) -> None:
    served = make_served()
    driver, keys = served.driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, [1])]))
    _, forward = driver.forward_batch([Extend(Keys(list(keys.slots), keys.position), [1])])
    from tests.inference.serving.test_worker import failure

    assert "page 96 does not exist" in failure(served.worker, replace_arrays(forward, kv_pages=ints([96])))
    driver.run(*driver.forward_batch([Extend(keys, [1])]))
    assert served.recorder.recorded == 1


def test_backends_say_whether_they_can_be_recorded() -> None:
    assert not issubclass(TorchAttention, GraphBackend)
    assert issubclass(Recordable, GraphBackend)


def test_no_size_is_far_from_the_next() -> None:
    sizes = cuda_graphs.SIZES
    assert all(below < above <= 2 * below for below, above in pairwise(sizes))


def test_a_worker_on_a_cpu_without_kernels_runs_directly(folder: Path) -> None:
    assert isinstance(make_worker(folder)._served.executor, DirectExecutor)
