"""A worker: a model on a device that runs waves (paper, sections 5.3 and 6.2)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ..adapters.loading import AdapterLoad, AdapterReader
from ..assembly.load import load
from ..assembly.plan import make_plan, read_model
from ..config import WorkerConfig
from ..device.markers import mark_stream
from ..device.ranks import Ranks, SingleRank
from ..execution.interface import Agree, agree_alone
from ..execution.launched import LaunchedWave
from ..protocol import AdapterLoaded, DropAdapter, LoadAdapter, ModelDescription, RunWave, WaveDone
from ..trials.choose import choose_ways
from .wave_run import WaveRun


class Worker:
    """Implements `Rank` on one device, for a model or one rank's share of it. Raises InferenceError if the model cannot
    be loaded."""

    def __init__(self, config: WorkerConfig, ranks: Ranks | None = None) -> None:
        self._last_finish = 0.0
        with torch.inference_mode():
            plan = make_plan(config, read_model(config), ranks or SingleRank())
            self._served = load(plan, choose_ways(plan))
        self._reader = AdapterReader(self._served.adapters, self._served.device)
        torch.set_num_threads(plan.threads)

    def describe(self) -> tuple[ModelDescription, ...]:
        return (self._served.description,)

    def run(self, wave: RunWave) -> WaveDone:
        return self.finish(self.launch(wave))

    def launch(self, wave: RunWave, agree: Agree = agree_alone) -> LaunchedWave:
        started = time.perf_counter()
        run = WaveRun(self._served, wave, agree)
        with torch.inference_mode():
            outcomes = run.run()
            end = mark_stream(self._served.device)
        return LaunchedWave(wave.wave, started, outcomes, run.all_failures, end)

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        return self.begin_adapter(message).install()

    def begin_adapter(self, message: LoadAdapter) -> AdapterLoad:
        return self._reader.begin(message)

    def drop_adapter(self, message: DropAdapter) -> None:
        self._served.adapters.drop(message.number)

    @property
    def adapters(self) -> Sequence[int]:
        return self._served.adapters.numbers

    def forget(self) -> None:
        for number in self.adapters:
            self._served.adapters.drop(number)
        if self._served.constraints is not None:
            self._served.constraints.clear()

    def finish(self, launched: LaunchedWave) -> WaveDone:
        results = launched.results()
        begun = max(launched.started, self._last_finish)
        self._last_finish = time.perf_counter()
        return WaveDone(launched.wave, results, self._last_finish - begun, launched.failures())
