"""The checks of `gpu_check` of what few batches have: adapters, images, masks, grammars, scores. Each compares a worker
on the device with one on the CPU that has plain operations."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from .kernels import compare, prepare_triton
from .results import Checks, Errors, Setting, Unavailable
from .serving import LOGPROB_ERROR, VOCAB, need_recorded, served

PLAIN: dict[str, Any] = {"device": "cpu", "attention": "torch", "kernels": "torch"}
DTYPES = ("float32", "bfloat16")
RANKS = (4, 16, 40)
IMAGE_ERROR = {"float32": 5e-3, "bfloat16": 5e-2}  # GPUs may convolve float32 in TF32
SCORE_ERROR = {"float32": 1e-3, "bfloat16": 3e-2}
PATTERN = "[a-z]{2,9}(-[0-9]{1,3}){2}"
BUSY_SECONDS = 20.0
"""Seconds in which a grammar is compiled."""

Measure = Callable[[Any], np.ndarray]
"""Numbers that a worker gives."""


def _compared(setting: Setting, dtype: str, measure: Measure, allowed: float) -> Errors:
    found, expected = (measure(served(setting, dtype, **options)) for options in ({}, PLAIN))
    return compare(torch.from_numpy(found), torch.from_numpy(expected).double(), allowed)


# ---- adapters --------------------------------------------------------------------------------------------------------


def adapter_products(setting: Setting) -> Checks:
    """Checks products of rows with their adapters against float64."""
    from pie_inference.adapters.products.torch_products import TorchProducts

    yield from _products(setting, "torch", TorchProducts())


def triton_adapter_products(setting: Setting) -> Checks:
    prepare_triton(setting)
    from pie_inference.adapters.products.triton_products import TritonProducts

    for dtype in DTYPES:
        kind = getattr(torch, dtype) if setting.is_gpu else torch.float32
        yield from _products(setting, "triton", TritonProducts(kind), (dtype,))


def _products(setting: Setting, name: str, products: Any, dtypes: Sequence[str] = DTYPES) -> Checks:
    from testing.adapters.oracle import PROBLEMS, TOLERANCE, relative_error

    names = [problem for problem, one in PROBLEMS.items() if products.capturable or not one.spare]
    for problem in names[: setting.cases or None]:
        for dtype in dtypes:

            def run(problem: str = problem, dtype: str = dtype) -> Errors:
                kind = getattr(torch, dtype)
                error = relative_error(problem, products, kind, setting.device)
                return Errors(relative=error, allowed=TOLERANCE[kind])

            yield f"{name}, {problem}, {dtype}", run


def adapters(setting: Setting) -> Checks:
    """Checks prompts and steps that mix adapters; on a GPU also those of recorded graphs."""
    for dtype in DTYPES:
        run = functools.partial(_compared, setting, dtype, functools.partial(_adapted, setting), LOGPROB_ERROR[dtype])
        yield dtype, run
    yield "graphs", functools.partial(_adapter_graphs, setting)


def _adapter_graphs(setting: Setting) -> Errors:
    if not setting.is_gpu:
        raise Unavailable("CUDA graphs need a GPU")
    worker = served(setting, "bfloat16", graphs="auto")
    replayed, direct = (_adapted(setting, one) for one in (worker, served(setting, "bfloat16", graphs="off")))
    need_recorded(worker, adapted=True)
    return compare(torch.from_numpy(replayed), torch.from_numpy(direct).double(), LOGPROB_ERROR["bfloat16"])


def _adapted(setting: Setting, worker: Any) -> np.ndarray:
    """Log-probabilities of prompts and steps of six sequences with adapters of several ranks and none."""
    from pie_inference.protocol import DropAdapter, GetLogprobs, GetLogprobsResult, LoadAdapter
    from testing.adapters.files import make_adapter, sizes_of
    from testing.worker_batches import Driver, Extend, Keys, indptr, ints

    model: Path = setting.folder / "model-4"
    sizes = sizes_of(model)
    for number, rank in enumerate(RANKS):
        folder = make_adapter(
            setting.folder / f"adapter-{rank}", rank=rank, modules=list(sizes), sizes=sizes, seed=number
        )
        answer = worker.load_adapter(LoadAdapter(number, str(folder)))
        assert answer.error is None, answer.error
    worker.load_adapter(LoadAdapter(9, str(setting.folder / f"adapter-{RANKS[0]}")))
    worker.drop_adapter(DropAdapter(9))
    driver, rng = Driver(worker.run, "model"), np.random.default_rng(0)
    chosen = [1, -1, 0, 2, 1, -1]
    keys, found = [Keys() for _ in chosen], list[np.ndarray]()
    for step in range(8):
        count = 1 if step else 30
        parts = [Extend(one, rng.integers(0, VOCAB, count).tolist()) for one in keys]
        embed, forward = driver.forward_batch(parts)
        forward = msgspec.structs.replace(forward, adapters=ints(chosen))
        rows = ints(range(count * len(chosen)))
        score = GetLogprobs(rows + driver.outputs, indptr([VOCAB] * len(rows)), ints(list(range(VOCAB)) * len(rows)))
        found.append(driver.ask(GetLogprobsResult, embed, forward, score).logprobs)
    return np.concatenate(found)


# ---- masks and scores ------------------------------------------------------------------------------------------------


def masks(setting: Setting) -> Checks:
    """Checks forwards whose queries see what a mask says."""
    for dtype in DTYPES:
        yield dtype, functools.partial(_compared, setting, dtype, _masked, LOGPROB_ERROR[dtype])


def _masked(worker: Any) -> np.ndarray:
    from testing.worker_batches import Driver, Extend, Keys

    driver, rng, found = Driver(worker.run, "model"), np.random.default_rng(0), list[np.ndarray]()
    keys = [Keys() for _ in range(3)]
    for count in (37, 5, 1, 1):
        parts = []
        for one in keys:
            mask = rng.random((count, len(one.slots) + count)) < 0.6
            mask[:, -count:] |= np.eye(count, dtype=bool)
            parts.append(Extend(one, rng.integers(0, VOCAB, count).tolist(), mask))
        found += driver.logprobs(*parts, vocab_size=VOCAB)
    return np.concatenate(found)


def scores(setting: Setting) -> Checks:
    """Checks how much attention each key got, with adapters and without."""
    for dtype in DTYPES:
        yield dtype, functools.partial(_compared, setting, dtype, _scored, SCORE_ERROR[dtype])


def _scored(worker: Any) -> np.ndarray:
    from pie_inference.protocol import ForwardWithScores, ForwardWithScoresResult
    from testing.worker_batches import Driver, Extend, Keys

    driver, rng, found = Driver(worker.run, "model"), np.random.default_rng(0), list[np.ndarray]()
    keys = [Keys() for _ in range(3)]
    for count in (40, 7, 1):
        embed, forward = driver.forward_batch([Extend(one, rng.integers(0, VOCAB, count).tolist()) for one in keys])
        batch = ForwardWithScores(**msgspec.structs.asdict(forward))
        found.append(driver.ask(ForwardWithScoresResult, embed, batch).scores)
    return np.concatenate(found)


# ---- grammars --------------------------------------------------------------------------------------------------------


def grammars(setting: Setting) -> Checks:
    """Checks that a run with a matcher samples the same tokens as on the CPU, and what the grammar allows."""
    yield "regex", functools.partial(_grammar, setting)


def _grammar(setting: Setting) -> Errors:
    try:
        from pie_inference.grammars.sources import source_of

        source = source_of("regex", PATTERN)
    except ImportError as error:
        raise Unavailable(f"the package llguidance is not installed: {error}") from None
    found, expected = (_constrained(served(setting, "float32", **options), source) for options in ({}, PLAIN))
    assert found == expected, f"tokens {found}, not {expected}"
    return Errors(note=f"{len(found)} tokens equal")


def _constrained(worker: Any, source: str) -> list[int]:
    from pie_inference.protocol import GrammarStart, RunWave
    from testing.worker_batches import Driver, Extend, Keys, ints, sample_batch

    driver, keys, tokens = Driver(worker.run, "model"), Keys(), list[int]()
    begin, uniform, pending = msgspec.msgpack.encode(GrammarStart(source, [], 0)), np.random.default_rng(0), [1, 2, 3]
    for count in range(20):
        driver.run(*driver.forward_batch([Extend(keys, pending)]))
        start = b"" if count else begin
        step = sample_batch(
            ints([driver.outputs + len(pending) - 1]),
            temperature=np.ones(1, np.float32),
            uniform=uniform.random(1),
            matchers=np.array([1], np.int64),
            matched=ints([count]),
            start_indptr=ints([0, len(start)]),
            starts=np.frombuffer(start, np.uint8),
            ended=np.array([], np.int64),
        )
        deadline, done = time.monotonic() + BUSY_SECONDS, worker.run(RunWave(1, "model", (step,)))
        while any(failure.busy for failure in done.failures) and time.monotonic() < deadline:
            time.sleep(0.002)
            done = worker.run(RunWave(1, "model", (step,)))
        assert not done.failures, done.failures
        pending = done.results[0].tokens.tolist()
        tokens += pending
        if done.results[0].over[0]:
            break
    return tokens


# ---- images ----------------------------------------------------------------------------------------------------------


def images(setting: Setting) -> Checks:
    """Checks vectors of tiles of images, by the log-probabilities behind them."""
    from testing.vision_checkpoint import make_vision_checkpoint

    folder = setting.folder / "seeing"
    if not folder.exists():
        make_vision_checkpoint(folder)
    for dtype in DTYPES:
        yield dtype, functools.partial(_images, setting, folder, dtype)


def _images(setting: Setting, folder: Path, dtype: str) -> Errors:
    from pie_inference.config import WorkerConfig
    from pie_inference.serving.worker import Worker

    def worker(**options: Any) -> Any:
        defaults = {"device": setting.device.type, "pages": 64, "embeds": 2048}
        return Worker(WorkerConfig(folder, "model", dtype=dtype, **{**defaults, **options}))

    found, expected = _seen(worker(), split=True), _seen(worker(**PLAIN), split=False)
    return compare(torch.from_numpy(found), torch.from_numpy(expected).double(), IMAGE_ERROR[dtype])


def _seen(worker: Any, split: bool) -> np.ndarray:
    """Log-probabilities behind the vectors of three tiles, some of which stand more than once. `split`: they go through
    the layers in two waves."""
    from pie_inference.protocol import GetLogprobs, GetLogprobsResult
    from testing.worker_batches import Driver, Extend, Keys, image_batch, in_two, indptr, ints

    vision = worker.describe()[0].vision
    order, size, whole = (2, 0, 0, 1), vision.tile_size, vision.tile_embeds
    count = whole * len(order)
    pixels = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), np.uint8)
    batch = image_batch(vision, pixels, ints(range(count)), order)
    driver = Driver(worker.run, "model")
    if split:
        before, batch = in_two(batch, 1)
        driver.run(before)
    _, forward = driver.forward_batch([Extend(Keys(), [65] * count)])
    score = GetLogprobs(ints(range(count)) + driver.outputs, indptr([9] * count), ints(list(range(9)) * count))
    logprobs: np.ndarray = driver.ask(GetLogprobsResult, batch, forward, score).logprobs
    return logprobs
