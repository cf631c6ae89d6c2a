"""What do LoRA adapters cost a decode step, and what does one call for all adapters of a layer save?

A worker's steps, without a server. Steps with adapters take turns with steps without.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pie_inference.adapters.products.torch_products import TorchProducts
from pie_inference.config import WorkerConfig
from pie_inference.protocol import LoadAdapter
from pie_inference.serving.worker import Worker
from testing.adapters.files import make_adapter, sizes_of
from testing.worker_batches import Driver, Extend, Keys, ints

from ..support.models.random_models import LLAMA_160M, model_folder
from ..support.samples import median

DEMO = "demo"


@dataclass(frozen=True)
class Plan:
    """Steps of `rows` sequences behind `context` tokens, which have as many different adapters of `rank` as `adapters`
    says, in turn. The median of `steps` counts."""

    models: tuple[str, ...]
    rows: int
    adapters: tuple[int, ...]
    rank: int
    context: int
    steps: int
    threads: int


FULL = Plan((DEMO, LLAMA_160M), rows=16, adapters=(1, 2, 8, 16), rank=16, context=64, steps=200, threads=1)
QUICK = Plan((DEMO,), rows=16, adapters=(1, 8), rank=16, context=16, steps=30, threads=1)


@dataclass(frozen=True)
class Row:
    """`times`: the step over one without adapters. `one_by_one` times: the same with plain operations of torch, one
    adapter after the other. `kernels`: what serves."""

    model: str
    adapters: int
    kernels: str
    ms: float
    times: float
    one_by_one: float


async def run(plan: Plan) -> list[Row]:
    """One row for each model and number of adapters."""
    return await asyncio.to_thread(lambda: [row for model in plan.models for row in _rows(model, plan)])


def _rows(model: str, plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(model)
        config = WorkerConfig(path, "model", pages=4096, embeds=1024, threads=plan.threads, max_adapters=64)
        worker = Worker(config)
        sizes = sizes_of(path)
        layers = worker._served.model.config.num_layers
        for number in range(max(plan.adapters)):
            made = make_adapter(
                Path(folder) / str(number), rank=plan.rank, modules=list(sizes), layers=layers, sizes=sizes, seed=number
            )
            answer = worker.load_adapter(LoadAdapter(number, str(made)))
            assert answer.error is None, answer.error
        steps = _Steps(worker, plan)
        return [_row(model, count, steps, plan) for count in plan.adapters]


class _Steps:
    """Steps of sequences behind a context; each step is run anew."""

    def __init__(self, worker: Worker, plan: Plan) -> None:
        self.products = worker._served.adapters.layers.running.products
        self._running = worker._served.adapters.layers.running
        self._rows = plan.rows
        self._driver = Driver(worker.run, "model")
        keys = [Keys() for _ in range(plan.rows)]
        for each in keys:
            self._driver.run(*self._driver.forward_batch([Extend(each, [7] * plan.context)]))
        self._batches = self._driver.forward_batch([Extend(each, [7]) for each in keys])

    def seconds(self, adapters: int) -> float:
        """Time of a step."""
        embed, forward = self._batches
        if adapters:
            forward = msgspec.structs.replace(forward, adapters=ints(np.arange(self._rows) % adapters))
        begin = time.perf_counter()
        self._driver.run(embed, forward)
        return time.perf_counter() - begin

    @contextmanager
    def one_by_one(self) -> Iterator[None]:
        self._running.products = TorchProducts()
        try:
            yield
        finally:
            self._running.products = self.products


def _row(model: str, count: int, steps: _Steps, plan: Plan) -> Row:
    def one_by_one() -> float:
        with steps.one_by_one():
            return steps.seconds(count)

    kinds: Mapping[str, Callable[[], float]] = {
        "none": lambda: steps.seconds(0),
        "all": lambda: steps.seconds(count),
        "each": one_by_one,
    }
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(plan.steps):
        for name, step in kinds.items():
            taken[name].append(step())
    none, together, each = (median(taken[name]) for name in ("none", "all", "each"))
    kernels = type(steps.products).__name__
    return Row(model, count, kernels, round(1e3 * together, 3), round(together / none, 2), round(each / none, 2))
