"""The yardstick of `tpot`: the worker's code in a tight loop, without sandbox, control layer or socket.

It runs the waves that Pie sends for the same work: all sequences decode together, and each token is fed back through
its token slot. Pages are assigned in advance.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.config import WorkerConfig
from pie_inference.execution.launched import LaunchedWave
from pie_inference.options import WorkerOptions
from pie_inference.options.pace import Pace
from pie_inference.protocol import Array, EmbedTxt, Forward, RunWave, Sample, SampleResult
from pie_inference.serving.worker import Worker
from pie_inference.testing.paced_model import PacedModel
from pie_inference.testing.paced_worker import LARGE_BATCHES
from pie_inference.trials.batches import DecodeBatch


@dataclass(frozen=True)
class Generated:
    """`tokens` int [sequences, tokens]; `seconds_per_token` between the first and the last."""

    tokens: NDArray[np.int32]
    seconds_per_token: float


class ClosedLoop:
    """A worker in this process."""

    def __init__(self, config: WorkerConfig) -> None:
        self._take(Worker(config))

    def _take(self, worker: Any) -> None:
        self._worker: Any = worker
        self.description = worker.describe()[0]
        self.threads = torch.get_num_threads()
        self._wave = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        ahead: int = 0,
        sampler: Mapping[str, float] | None = None,
    ) -> Generated:
        """Generates `count` tokens behind prompts of equal length, which run one after the other before the measured
        time: the most probable ones, unless `sampler` has bounds of all texts. `ahead` more waves are launched before
        the results of one are awaited."""
        torch.set_num_threads(self.threads)  # for this thread, which may not be the one that loaded
        batch = DecodeBatch(len(prompts), len(prompts[0]) + count, self.description.page_size, sampler=sampler)
        for row, prompt in enumerate(prompts):
            self._run(batch.embed_prompt(prompt), batch.prefill(row, len(prompt)))
        tokens = [self._run(batch.sample)]
        running: deque[LaunchedWave] = deque()
        start = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + count - 1):
            running.append(self._launch(batch.embed, batch.forward(position), batch.sample))
            if len(running) > ahead:
                tokens.append(self._finish(running.popleft()))
        tokens += [self._finish(wave) for wave in running]
        elapsed = time.perf_counter() - start
        return Generated(np.array(tokens).T, elapsed / (count - 1))

    def kernels(self, sequences: int) -> str:
        """Whose attention serves, and whether steps of so many sequences run by a graph."""
        executor: Any = self._worker._served.executor
        recordings, recorder = getattr(executor, "_recordings", {}), getattr(executor, "_recorder", None)
        size = next((size for size in getattr(recorder, "sizes", ()) if size >= sequences), None)
        how = "by graphs" if recordings.get((size, None)) is not None else "kernel by kernel"
        return f"{type(executor._attention).__name__}, {how}"

    def _run(self, *batches: EmbedTxt | Forward | Sample) -> Array:
        return self._finish(self._launch(*batches))

    def _launch(self, *batches: EmbedTxt | Forward | Sample) -> LaunchedWave:
        self._wave += 1
        launched: LaunchedWave = self._worker.launch(RunWave(self._wave, self.description.name, batches))
        return launched

    def _finish(self, wave: LaunchedWave) -> Array:
        """The sampled tokens, if the last batch samples."""
        done = self._worker.finish(wave)
        assert not done.failures, done.failures
        result = done.results[-1]
        return result.tokens if isinstance(result, SampleResult) else _int32([])


class PacedLoop(ClosedLoop):
    """The same of a stand-in for a GPU. Nothing waits here: a token takes what the pace says."""

    def __init__(self, name: str, pace: Pace) -> None:
        options: dict[str, Any] = {**LARGE_BATCHES}
        model, self._pace = PacedModel(name, pace, WorkerOptions(**options)), pace
        self._take(SimpleNamespace(describe=model.describe, launch=model.run, finish=lambda done: done))

    def generate(self, prompts: Sequence[Sequence[int]], count: int, *more: Any, **options: Any) -> Generated:
        made = super().generate(prompts, count, *more, **options)
        return replace(made, seconds_per_token=self._pace.seconds(len(prompts)))


def _int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
