"""Outputs that are no numbers, as a broken checkpoint gives them, fail the commands that read them, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig
from pie_inference.loading.checkpoint import SINGLE_FILE
from pie_inference.protocol import (
    Batch,
    ForwardWithScores,
    GetEmbedding,
    GetLogprobs,
    GetNextDist,
    RunWave,
    SampleResult,
    Verify,
    WaveDone,
)
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, embed_batch, indptr, ints, sample_batch

VOCAB, BROKEN = 272, 7
PROMPTS = ([1, 2, 3], [4, 5, BROKEN], [8, 9])
BAD = 1  # the prompt with the broken token

Run = Callable[[RunWave], WaveDone]
Rows = Sequence[int]


@pytest.fixture(scope="module", params=["kernels", "torch", "group"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Iterator[Run]:
    """A model with a token whose embedding is NaN."""
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), vocab_size=VOCAB)
    tensors = load_file(folder / SINGLE_FILE)
    tensors["model.embed_tokens.weight"][BROKEN] = math.nan
    save_file(tensors, folder / SINGLE_FILE)
    options: dict[str, Any] = {"dtype": "float32", "pages": 64, "embeds": 1024, "cache_dir": kernel_cache}
    if request.param == "group":
        with WorkerGroup(WorkerConfig(folder, "model", tensor_parallel=2, **options), Worker) as group:
            yield group.run
        return
    kernels = "torch" if request.param == "torch" else "auto"
    yield Worker(WorkerConfig(folder, "model", kernels=kernels, **options)).run


def sample(masked: Rows = (), heat: Sequence[float] = (0.0, 0.0, 0.0), **more: Any) -> Callable[[Any, Rows], Batch]:
    def build(outputs: Any, which: Rows) -> Batch:
        allowed = np.packbits(np.arange(VOCAB) % 5 == 2, bitorder="little")[None]
        rows = ints([0 if n in masked else -1 for n in which])
        temperature = np.array([heat[n] for n in which], np.float32)
        own = {name: np.repeat(column, len(which)) for name, column in more.items()}
        return sample_batch(outputs, temperature=temperature, allowed_rows=rows, allowed=allowed, **own)

    return build


def verify(outputs: Any, which: Rows) -> Batch:
    n, ones = len(which), np.ones(len(which), np.float32)
    rows = {"embeds": np.repeat(outputs, 2), "indptr": indptr([2] * n), "draft": ints([9, -1] * n)}
    choice = {"temperature": ones, "top_k": ints([0] * n), "top_p": ones, "min_p": 0 * ones}
    return Verify(**rows, **choice, uniform=np.full(2 * n, 0.3))


def dist(outputs: Any, which: Rows) -> Batch:
    return GetNextDist(outputs, ints([3] * len(which)), np.ones(len(which), np.float32))


def logprobs(outputs: Any, which: Rows) -> Batch:
    return GetLogprobs(outputs, indptr([1 + n for n in which]), ints([7] * sum(1 + n for n in which)))


def dists_of_both(outputs: Any, which: Rows) -> Batch:
    """At two outputs of each command, the first of which has numbers."""
    both, ones = np.repeat(outputs, 2), np.ones(len(which), np.float32)
    both[0::2] -= 1
    return GetNextDist(both, ints([3] * len(which)), ones, indptr([2] * len(which)))


def embedding(outputs: Any, which: Rows) -> Batch:
    n = len(which)
    return GetEmbedding(outputs, indptr([1] * n), np.ones(n, np.bool_), ints([64] * n), np.ones(n, np.bool_))


HOT = (0.7, 0.7, 0.7)
CASES: dict[str, Callable[[Any, Rows], Batch]] = {
    "greedy": sample(),
    "greedy with masks": sample(masked=(0, 1, 2)),
    "greedy beside a mask": sample(masked=(2,)),
    "greedy with one mask": sample(masked=(1,)),
    "sampled": sample(heat=HOT),
    "sampled from few": sample(heat=HOT, top_p=np.float32(0.9)),
    "sampled with masks": sample(masked=(0, 1, 2), heat=HOT),
    "sampled beside a greedy one": sample(masked=(0, 1), heat=(0.0, 0.7, 0.7), typical_p=np.float32(0.5)),
    "with log-probabilities": sample(masked=(1,), alternatives=np.int32(2)),
    "verify": verify,
    "get_next_dist": dist,
    "get_next_dist of two": dists_of_both,
    "get_logprobs": logprobs,
    "get_embedding": embedding,
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_number_fails_its_command_alone(case: str, run: Run) -> None:
    driver = Driver(run, "model")
    driver.run(*driver.forward_batch([Extend(Keys(), prompt) for prompt in PROMPTS]))
    outputs = ints(driver.outputs + np.cumsum([len(prompt) for prompt in PROMPTS]) - 1)
    done = run(RunWave(1, "model", (CASES[case](outputs, [0, 1, 2]),)))
    [failure] = done.failures
    assert (failure.batch, failure.command) == (0, BAD)
    assert ": the model's outputs are no numbers (NaN): its weights may have NaN" in failure.message
    others = driver.run(CASES[case](outputs[[0, 2]], [0, 2]))
    assert told(done.results[0], 0) == told(others[0], 0)
    assert told(done.results[0], 2) == told(others[0], 1)


def told(result: Any, place: int) -> list[int]:
    """The tokens that a command is told, or its numbers in thousandths."""
    if hasattr(result, "vectors"):
        return [round(1000 * number) for number in result.vectors[slice(*result.indptr[place : place + 2])]]
    if not hasattr(result, "tokens"):
        first = 0 if place == 0 else -3  # log-probabilities of 1, 2 and 3 tokens
        return [round(1000 * number) for number in result.logprobs[first:][: 1 if place == 0 else 3]]
    if hasattr(result, "rest"):
        first, end = result.indptr[place : place + 2]
        return list(result.tokens[first:end].tolist())
    return [int(result.tokens[place])]


def test_attention_that_is_no_number_fails_its_command_alone(run: Run) -> None:
    embed, forward = Driver(run, "model").forward_batch([Extend(Keys(), prompt) for prompt in PROMPTS])
    done = run(RunWave(1, "model", (embed, ForwardWithScores(**msgspec.structs.asdict(forward)))))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(1, BAD)]
    assert "the model's outputs are no numbers (NaN)" in done.failures[0].message


def test_a_step_that_was_launched_behind_it_has_a_token(run: Run) -> None:
    """A kernel would read beyond the table of tokens."""
    driver, keys = Driver(run, "model"), Keys()
    driver.run(*driver.forward_batch([Extend(keys, PROMPTS[BAD])]))
    taken = sample_batch(ints([driver.outputs + 2]), token_slots=ints([40]))
    done = run(RunWave(1, "model", (taken, embed_batch(ints([90]), ints([-41])))))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, 0)]
    result = done.results[0]
    assert isinstance(result, SampleResult)
    assert 0 <= result.tokens[0] < VOCAB


@pytest.fixture(scope="module", params=["kernels", "torch"])
def torn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Run:
    """A model whose logit of one token is NaN."""
    folder = make_checkpoint(tmp_path_factory.mktemp("torn"), vocab_size=VOCAB)
    tensors = load_file(folder / SINGLE_FILE)
    tensors["lm_head.weight"][BROKEN] = math.nan
    save_file(tensors, folder / SINGLE_FILE)
    kernels = "torch" if request.param == "torch" else "auto"
    options: dict[str, Any] = {"dtype": "float32", "pages": 64, "embeds": 1024, "cache_dir": kernel_cache}
    return Worker(WorkerConfig(folder, "model", kernels=kernels, **options)).run


@pytest.mark.parametrize("heat", [0.0, 0.7])
@pytest.mark.parametrize(
    ("first", "asks", "fails"),
    [(BROKEN + 1, False, False), (BROKEN + 1, True, True), (BROKEN - 3, False, True), (BROKEN, True, True)],
)
def test_a_logit_that_is_no_number_matters_where_its_token_may_come_or_probabilities_are_asked(
    first: int, asks: bool, fails: bool, heat: float, torn: Run
) -> None:
    driver, allowed = Driver(torn, "model"), np.packbits(np.arange(VOCAB) >= first, bitorder="little")[None]
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    temperature = np.array([heat], np.float32)
    own = {"temperature": temperature, "allowed_rows": ints([0]), "allowed": allowed, "alternatives": ints([asks - 1])}
    step = sample_batch(ints([driver.outputs + 2]), **own)
    done = torn(RunWave(1, "model", (step,)))
    assert ["the model's outputs are no numbers" in failure.message for failure in done.failures] == [True] * fails
