"""Measures how fast a checkpoint is here: runs a worker for about a minute and compares it with the machine's
bounds."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..assembly.plan import make_plan, read_model
from ..config import WorkerConfig
from ..device.ranks import SingleRank
from ..errors import InferenceError
from ..protocol import EmbedTxt, Forward, ModelDescription, RunWave, Sample
from ..serving.worker import Worker
from ..trials.batches import DecodeBatch
from .costs import Costs, model_costs
from .products import ServedProducts, describe_products
from .rates import SECONDS, Rates, measure_rates

SEQUENCES = (1, 8, 32)
CONTEXT = 128  # tokens before the first decoded token
PREFILL = 1024
DECODE_SECONDS = 4.0
PREFILL_SECONDS = 6.0
LEAST_WAVES = 3


@dataclass(frozen=True)
class Speed:
    """The speed of one kind of work."""

    work: str  # decode or prefill
    sequences: int
    tokens_per_second: float
    milliseconds: float  # of one wave, the median
    bound_tokens_per_second: float  # the most that reading the weights, or multiplying by them, allows
    share: float  # share of the bound that is reached


@dataclass(frozen=True)
class Measurement:
    """All results of one measurement."""

    model: str
    architecture: str
    device: str
    dtype: str
    quantization: str
    products: ServedProducts
    threads: int
    load_seconds: float
    weight_bytes: int
    read_bytes_per_second: float
    gemm_operations_per_second: float
    peak_bytes: int  # memory of the process, or of the GPU if the model runs there
    speeds: tuple[Speed, ...]


def measure(config: WorkerConfig, sequences: tuple[int, ...] = SEQUENCES, budget: float = 1.0) -> Measurement:
    """Measures the model of `config`. `budget` scales the time it takes. Raises InferenceError if the model cannot be
    served."""
    files = read_model(config)
    plan = make_plan(config, files, SingleRank())  # before the weights take their memory
    _tell("loading")
    started = time.perf_counter()
    worker = Worker(config)
    load_seconds = time.perf_counter() - started
    description = worker.describe()[0]
    device, dtype = torch.device(description.device), getattr(torch, description.dtype)
    costs = model_costs(files.checkpoint, files.raw_config, dtype, config.quantization)
    probe = _Probe(worker, description, costs, budget)
    speeds = [probe.prefill(), *map(probe.decode, sequences)]
    peak = _peak_bytes(device)
    _tell("measuring memory and matrix products")
    rates = measure_rates(device, dtype, plan.library, budget=SECONDS * budget)
    return Measurement(
        model=str(config.model),
        architecture=description.architecture,
        device=description.device,
        dtype=description.dtype,
        quantization=config.quantization,
        products=describe_products(plan),
        threads=torch.get_num_threads(),
        load_seconds=load_seconds,
        weight_bytes=description.weight_bytes,
        read_bytes_per_second=rates.read_bytes,
        gemm_operations_per_second=rates.gemm_operations,
        peak_bytes=peak,
        speeds=tuple(speed.against(rates) for speed in speeds),
    )


@dataclass(frozen=True)
class _Timed:
    work: str
    sequences: int
    tokens: int  # of one wave
    seconds: float  # of one wave
    read_bytes: float
    operations: float

    def against(self, rates: Rates) -> Speed:
        bound = rates.seconds(self.read_bytes, self.operations)
        return Speed(
            work=self.work,
            sequences=self.sequences,
            tokens_per_second=self.tokens / self.seconds,
            milliseconds=self.seconds * 1e3,
            bound_tokens_per_second=self.tokens / bound,
            share=bound / self.seconds,
        )


class _Probe:
    """Runs waves on a worker. Keys, values and states are the zeros of fresh pages; kernels take as long on them."""

    def __init__(self, worker: Worker, model: ModelDescription, costs: Costs, budget: float) -> None:
        self._worker = worker
        self._model = model
        self._costs = costs
        self._budget = budget

    @property
    def _has_states(self) -> bool:
        return self._model.num_states > 0

    def decode(self, sequences: int) -> _Timed:
        """Times a wave that decodes one token of each sequence."""
        _tell(f"decoding {sequences} at a time")
        context = min(CONTEXT, self._model.max_context // 2)
        sequences = min(sequences, self._model.num_pages // -(-(context + 1) // self._model.page_size))
        sequences = min(sequences, self._model.num_states) if self._has_states else sequences
        batch = DecodeBatch(sequences, context + 1, self._model.page_size, has_states=self._has_states)
        seconds = self._median(lambda: self._run(batch.embed, batch.forward(context), batch.sample), DECODE_SECONDS)
        keys = sequences * context * self._model.page_bytes // self._model.page_size
        operations = self._costs.operations(sequences, sequences)
        return _Timed("decode", sequences, sequences, seconds, self._costs.read_bytes(sequences) + keys, operations)

    def prefill(self) -> _Timed:
        """Times a wave that reads one prompt."""
        capacity = self._model.num_pages * self._model.page_size
        tokens = min(PREFILL, self._model.max_batch_tokens, self._model.max_context, capacity)
        _tell(f"reading a prompt of {tokens} tokens")
        batch = DecodeBatch(1, tokens, self._model.page_size, has_states=self._has_states)
        embed = batch.embed_prompt([n % self._model.vocab_size for n in range(tokens)])
        seconds = self._median(lambda: self._run(embed, batch.prefill(0, tokens)), PREFILL_SECONDS)
        operations = self._costs.operations(tokens, 0)
        return _Timed("prefill", 1, tokens, seconds, self._costs.read_bytes(tokens), operations)

    def _median(self, action: Callable[[], None], seconds: float) -> float:
        """The median time of an action in seconds, after two runs that do not count."""
        for _ in range(2):
            action()
        times: list[float] = []
        deadline = time.perf_counter() + seconds * self._budget
        while time.perf_counter() < deadline or len(times) < LEAST_WAVES:
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def _run(self, *batches: EmbedTxt | Forward | Sample) -> None:
        done = self._worker.run(RunWave(1, self._model.name, batches))
        if done.failures:
            raise InferenceError(done.failures[0].message)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else 1024 * kilobytes


def _tell(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)
