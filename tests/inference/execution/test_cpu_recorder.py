"""Recorded batches on a CPU equal those that run kernel by kernel, bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import Call, Library
from pie_inference.execution import cpu_recorder
from pie_inference.execution.cpu_recorder import CpuRecorder
from pie_inference.execution.direct import DirectExecutor
from pie_inference.execution.graphs import GraphExecutor
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.protocol import LoadAdapter
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, ints
from tests.helpers.adapters import make_adapter
from tests.helpers.families import FAMILIES, HEADS, save_reference
from tests.helpers.kernels import needs_kernels
from tests.helpers.tiers import corpus
from tests.inference.execution.test_graphs import PROMPTS, generate

pytestmark = needs_kernels
DTYPES = ("float32", "bfloat16")
STEPS = 30
"""Texts that begin within the window of a model go beyond it."""


def serve(folder: Path, cache: Path, **options: str) -> tuple[Worker, Worker]:
    """A worker that records, and one that does not."""
    given: dict[str, Any] = {"dtype": "float32", "kernels": "own", "pages": 96, "embeds": 1024, **options}
    recorded, direct = (
        Worker(WorkerConfig(folder, "model", cache_dir=cache, graphs=graphs, **given)) for graphs in ("auto", "off")
    )
    assert isinstance(direct._served.executor, DirectExecutor)
    return recorded, direct


def recorded_sizes(worker: Worker) -> set[int]:
    executor = worker._served.executor
    assert isinstance(executor, GraphExecutor)
    return {size for (size, _), recording in executor._recordings.items() if recording is not None}


def assert_equal(recorded: Worker, direct: Worker, adapters: list[int] | None = None) -> None:
    texts = [generate(Driver(each.run, "model"), PROMPTS, STEPS, adapters) for each in (recorded, direct)]
    assert texts[0] == texts[1]
    assert_left_alike(recorded, direct)


def assert_left_alike(recorded: Worker, direct: Worker) -> None:
    own, others = (each._served.embeds.vectors for each in (recorded, direct))
    assert own.abs().sum() > 0
    assert torch.equal(own, others)
    assert torch.equal(recorded._served.cache.layer(1), direct._served.cache.layer(1))


@pytest.mark.parametrize("family", corpus(FAMILIES, lambda _: "any"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recorded_step_equals_a_direct_one(family: str, dtype: str, tmp_path: Path, kernel_cache: Path) -> None:
    architecture, settings = FAMILIES[family]
    save_reference(tmp_path, architecture, **settings | HEADS)
    recorded, direct = serve(tmp_path, kernel_cache, dtype=dtype)
    assert_equal(recorded, direct)
    assert recorded_sizes(recorded) == {5, 4}, "exactly as many rows as there are"


def extend(worker: Worker, adapters: list[int] | None = None) -> None:
    """Texts that go on by a token each, beside one that gets some at a time, without or with a mask."""
    driver, keys = Driver(worker.run, "model"), [Keys() for _ in range(4)]
    driver.run(*driver.forward_batch([Extend(each, range(20)) for each in keys[:3]]))
    for step in range(STEPS):
        count = 2 + step % 2
        mask = np.arange(count * (len(keys[3].slots) + count)).reshape(count, -1) % 3 == 0
        last = Extend(keys[3], range(count), mask if step % 3 else None)
        embed, forward = driver.forward_batch([*(Extend(each, [step]) for each in keys[:3]), last])
        if adapters is not None:
            forward = msgspec.structs.replace(forward, adapters=ints(adapters))
        driver.run(embed, forward)


@pytest.mark.parametrize("family", corpus(FAMILIES, lambda _: "any"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_texts_that_get_some_tokens_at_a_time_are_recorded(
    family: str, dtype: str, tmp_path: Path, kernel_cache: Path
) -> None:
    architecture, settings = FAMILIES[family]
    save_reference(tmp_path, architecture, **settings | HEADS)
    recorded, direct = serve(tmp_path, kernel_cache, dtype=dtype)
    for worker in (recorded, direct):
        extend(worker)
    assert_left_alike(recorded, direct)
    assert recorded_sizes(recorded) == {5, 6}


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("code", ["own", "transformers"])
def test_steps_of_either_code_are_recorded(code: str, family: str, tmp_path: Path, kernel_cache: Path) -> None:
    architecture, settings = FAMILIES[family]
    save_reference(tmp_path, architecture, **settings)
    recorded, direct = serve(tmp_path, kernel_cache, model_code=code)
    assert_equal(recorded, direct)
    assert recorded_sizes(recorded) == {5, 4}


def test_steps_with_adapters_are_recorded(tmp_path: Path, kernel_cache: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    recorded, direct = serve(folder, kernel_cache)
    for number, rank in enumerate((4, 8)):
        made = make_adapter(tmp_path / f"adapter-{rank}", rank=rank, seed=number)
        for worker in (recorded, direct):
            assert worker.load_adapter(LoadAdapter(number, str(made))).error is None
    for adapters in ([0, 1, -1, 1, 0], [1, -1, 0, 0, 1], None):
        assert_equal(recorded, direct, adapters)
    executor = recorded._served.executor
    assert isinstance(executor, GraphExecutor)
    assert len(executor._recordings) == 4
    for worker in (recorded, direct):
        extend(worker, [1, -1, 0, 1])
    assert_left_alike(recorded, direct)
    assert len(executor._recordings) == 5, "for steps of six rows"


def test_steps_for_which_there_is_no_room_run_directly(
    tmp_path: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path)
    monkeypatch.setattr(cpu_recorder, "MOST_BYTES", 33_000)
    recorded, direct = serve(folder, kernel_cache)
    assert_equal(recorded, direct)
    assert recorded_sizes(recorded) == {4}


@pytest.fixture
def ops(library: Library) -> CpuOps:
    return CpuOps(library, torch.float32)


@pytest.mark.parametrize(
    "work",
    [
        lambda ops, x, w: ops.rms_norm(x, w, 1e-5) + 1,
        lambda ops, x, w: ops.rms_norm(x.t().contiguous().view(2, 8), w, 1e-5),
        lambda ops, x, w: x.to(torch.float64).to(torch.float32).mul_(2),
        lambda ops, x, w: torch.cat([x.clone().fill_(3), *x.unbind()[:1], x.split(1)[1][0][None]][:1]),
        lambda ops, x, w: x.topk(3).values.sum(-1, keepdim=True) * x,
        lambda ops, x, w: x.reshape(8, 2).t().reshape(2, 8) @ torch.diag(w),
        lambda ops, x, w: torch.arange(8.0).add_(x[0]),
        lambda ops, x, w: torch.nn.functional.linear(x, w.repeat(8, 1), w).softmax(-1),
    ],
)
def test_a_replay_computes_anew(
    work: Callable[[CpuOps, Tensor, Tensor], Tensor], ops: CpuOps, library: Library
) -> None:
    given, weight, result = torch.zeros(2, 8), torch.rand(8), torch.zeros(2, 8)

    def step() -> None:
        result.copy_(work(ops, given, weight))

    with torch.inference_mode():
        recorder = CpuRecorder(library)
        replay, another = recorder.record(step), recorder.record(step)
        for again in (replay, another, replay):
            assert again is not None
            given.copy_(torch.rand(2, 8))
            again()
            assert torch.equal(result, work(ops, given, weight).expand(2, 8))


def test_a_step_that_looks_at_numbers_cannot_be_recorded(library: Library) -> None:
    given = torch.ones(3)
    looks: list[Callable[[], Any]] = [lambda: given.sum().item(), given.nonzero, lambda: bool(given[0])]
    for look in looks:
        with pytest.raises(RuntimeError, match="lets the host look at numbers"):
            CpuRecorder(library).record(look)


def test_only_calls_of_the_thread_are_listed(library: Library, ops: CpuOps) -> None:
    calls = list[Call]()

    def norm() -> None:
        ops.rms_norm(torch.ones(1, 8), torch.ones(8), 1e-5)

    with library.listing(calls):
        norm()  # is not made
        other = threading.Thread(target=norm)
        other.start()
        other.join()
    norm()
    assert len(calls) == 1
