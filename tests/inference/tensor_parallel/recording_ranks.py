"""Ranks on CPUs that run decode steps by graphs, as those on GPUs do. This module is also the process of a follower."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import torch

from pie_inference.attention.torch.pages import TorchAttention
from pie_inference.config import WorkerConfig
from pie_inference.device.ranks import Ranks
from pie_inference.execution.direct import DirectExecutor
from pie_inference.execution.graphs import SIZES, GraphExecutor, Work
from pie_inference.kv_cache.pages import KvCache
from pie_inference.serving import follower
from pie_inference.serving.worker import Worker
from tests.inference.execution.test_graphs import GraphPlanOfTests, Recordable


class Failing:
    """Has no memory for one of the steps in which a graph is made."""

    def __init__(self, step: str) -> None:
        self._step = step

    def come_to(self, step: str) -> None:
        if step == self._step:
            raise torch.OutOfMemoryError("tried to allocate 20 MiB")


class Attention(Recordable):
    def __init__(self, backend: TorchAttention, cache: KvCache, failing: Failing) -> None:
        super().__init__(backend, cache)
        self._failing = failing

    def graph_plan(self, size: int) -> GraphPlanOfTests:
        self._failing.come_to("allocate")
        return super().graph_plan(size)


class Recorder:
    """Does the work once more to warm up, as on GPUs, and again for each replay."""

    sizes = SIZES

    def __init__(self, failing: Failing) -> None:
        self._failing = failing

    def warm_up(self, work: Work) -> None:
        self._failing.come_to("warm up")
        work()

    def record(self, work: Work) -> Work:
        self._failing.come_to("record")
        return work


def make_worker(config: WorkerConfig, ranks: Ranks, failing: str = "") -> Worker:
    worker = Worker(config, ranks)
    served, step = worker._served, Failing(failing)
    model = served.model
    backend = TorchAttention(served.cache, model.config.heads_of(ranks)[0], model.config.attention)
    attention = Attention(backend, served.cache, step)
    direct = DirectExecutor(model, attention, served.embeds)
    executor = GraphExecutor(direct, model, attention, served.embeds, served.adapters, Recorder(step), ranks)
    worker._served = replace(served, executor=executor)
    return worker


if __name__ == "__main__":
    follower.Worker = make_worker  # type: ignore[assignment, attr-defined]
    os._exit(follower.main(*map(int, sys.argv[1:])))
