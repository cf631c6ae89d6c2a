"""Rows with matchers on a worker, and on a group of ranks: tokens are those of the engine's own masks and the same
sampler, and a command that is wrong fails alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher

from pie_inference.config import WorkerConfig
from pie_inference.grammars.sources import source_of
from pie_inference.protocol import RunWave, Sample, SampleResult, WaveDone
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, ints, sample_batch
from tests.helpers.grammars import vocabulary
from tests.helpers.guard import HANG_SECONDS
from tests.inference.grammars.test_rows import batch, row

VOCAB = 272  # of the checkpoint; the first 259 are the bytes and special tokens of the fake model
SCHEMA = """
{"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"],
 "additionalProperties": false}"""
SOURCES = [
    source_of("regex", "[a-z]{2,9}(-[0-9]{1,3}){2}"),
    source_of("json-schema", SCHEMA),
    source_of("lark", 'start: ("ab" | "cd")~3..6 "."'),
]
Run = Callable[[RunWave], WaveDone]


@pytest.fixture(scope="module", params=[1, 2])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A worker alone, or two ranks."""
    folder = make_checkpoint(tmp_path_factory.mktemp("model"))
    config = WorkerConfig(folder, "model", pages=64, embeds=2048, dtype="float32", device="cpu")
    if request.param == 1:
        yield Worker(config).run
        return
    with WorkerGroup(replace(config, tensor_parallel=2), Worker) as group:
        yield group.run


class Sequences:
    """Prompts that were read, and steps of all sequences that go on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.driver = Driver(run, "model")
        self.keys = [Keys() for _ in SOURCES]
        self.made: list[list[int]] = [[] for _ in SOURCES]
        self.next = [[1, 2, 3 + number] for number in range(len(SOURCES))]

    def forward(self, live: list[int]) -> np.ndarray:
        """Runs what is next of these sequences; gives the embeds of the last outputs."""
        parts = [Extend(self.keys[number], self.next[number]) for number in live]
        self.driver.run(*self.driver.forward_batch(parts))
        return ints(self.driver.outputs + np.cumsum([len(part.tokens) for part in parts]) - 1)

    def took(self, number: int, token: int) -> None:
        self.made[number].append(token)
        self.next[number] = [token]


def placed(sample: Sample, embeds: np.ndarray, heat: float, count: int) -> Sample:
    uniform = np.random.default_rng(count).random(len(embeds))
    temperature = np.full(len(embeds), heat, np.float32)
    return msgspec.structs.replace(sample, embeds=embeds, temperature=temperature, uniform=uniform)


def matched(run: Run, heat: float, steps: int) -> list[list[int]]:
    """Tokens by matchers; the worker says when a run is over."""
    sequences, live, deadline = Sequences(run), list(range(len(SOURCES))), time.monotonic() + HANG_SECONDS
    for count in range(steps):
        if not live:
            break
        rows = [row(number + 1, count, "" if count else SOURCES[number]) for number in live]
        step = placed(batch(*rows), sequences.forward(live), heat, count)
        while True:
            done = run(RunWave(1, "model", (step,)))
            if not any(failure.busy for failure in done.failures):
                break
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert not done.failures
        result: Any = done.results[0]
        for number, token in zip(live, result.tokens.tolist(), strict=True):
            sequences.took(number, token)
        live = [number for number, over in zip(live, result.over.tolist(), strict=True) if not over]
    run(RunWave(1, "model", (batch(row(0, 0), ended=[1, 2, 3]),)))
    return sequences.made


def masked(run: Run, heat: float, steps: int) -> list[list[int]]:
    """Tokens by masks, made step by step by matchers of the engine itself."""
    sequences, live = Sequences(run), list(range(len(SOURCES)))
    matchers = [LLMatcher(vocabulary().inner, source, log_level=0) for source in SOURCES]
    for count in range(steps):
        if not live:
            break
        masks = [np.frombuffer(matchers[number].compute_bitmask(), np.uint8) for number in live]
        allowed = np.stack([np.resize(np.append(mask, np.zeros(8, np.uint8)), VOCAB // 8) for mask in masks])
        embeds = sequences.forward(live)
        plain = sample_batch(embeds, allowed_rows=ints(range(len(live))), allowed=allowed)
        result: Any = run(RunWave(1, "model", (placed(plain, embeds, heat, count),))).results[0]
        for number, token in zip(live, result.tokens.tolist(), strict=True):
            sequences.took(number, token)
            matchers[number].consume_token(token)
        live = [number for number in live if not matchers[number].is_stopped()]
    return sequences.made


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_tokens_are_those_of_masks_made_step_by_step(run: Run, heat: float) -> None:
    found = matched(run, heat, 24)
    assert found == masked(run, heat, 24)
    first, second, third = (
        bytes(token for token in tokens if token < 256).decode("utf-8", "replace") for tokens in found
    )
    if len(found[0]) < 24:
        assert re.fullmatch("[a-z]{2,9}(-[0-9]{1,3}){2}", first)
    if len(found[1]) < 24:
        json.loads(second)
    assert re.fullmatch(r"(ab|cd){3,6}\.", third)


def test_a_row_that_is_wrong_fails_alone(run: Run) -> None:
    """A fault of a grammar, and beside it a command that takes the batch apart."""
    sequences = Sequences(run)
    matched(run, 0.0, 1)  # has the grammars compiled
    embeds = sequences.forward([0, 1, 2])
    rows = [row(11, 0, SOURCES[0]), row(12, 0, SOURCES[1], b"x"), row(13, 0, SOURCES[2]), row(0, 0)]
    together = placed(batch(*rows), np.append(embeds, embeds[0]).astype(np.int32), 0.0, 0)
    done = run(RunWave(1, "model", (together,)))
    assert [(failure.command, failure.busy) for failure in done.failures] == [(1, False)]
    assert "sample: the tokens before the run do not fit the grammar" in done.failures[0].message
    right: Any = done.results[0]
    again = [row(21, 0, SOURCES[0]), row(22, 0, SOURCES[1], b"x"), row(23, 0, SOURCES[2]), row(0, 0)]
    apart = placed(batch(*again), np.append(embeds, 10**6).astype(np.int32), 0.0, 0)
    done = run(RunWave(2, "model", (apart,)))
    assert [failure.command for failure in done.failures] == [1, 3]
    result = done.results[0]
    assert isinstance(result, SampleResult)
    assert result.tokens[[0, 2]].tolist() == right.tokens[[0, 2]].tolist()
    assert result.over is not None
    assert result.over.tolist() == [False] * 4
