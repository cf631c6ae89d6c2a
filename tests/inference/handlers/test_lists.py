"""Calls that read several outputs, and samples with log-probabilities: the numbers of single calls, on one rank and on
two."""

from __future__ import annotations

import numpy as np
import pytest

from pie_inference.protocol import (
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    GetNextDistResult,
    RunWave,
    SampleResult,
)
from testing.worker_batches import Driver, Extend, Keys, dist_batch, ints, sample_batch


def outputs(driver: Driver) -> np.ndarray:
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3, 4, 5])]))
    return ints(driver.outputs + np.arange(5))


def test_lists_give_the_numbers_of_single_calls(driver: Driver) -> None:
    embeds = outputs(driver)
    one = driver.ask(GetNextDistResult, dist_batch(embeds, 4, 0.7))
    batch = GetNextDist(embeds, ints([4, 4]), np.full(2, 0.7, np.float32), ints([0, 2, 5]))
    together = driver.ask(GetNextDistResult, batch)
    assert one.rest_indptr is None
    assert together.rest_indptr is not None
    assert (together.indptr.tolist(), together.rest_indptr.tolist()) == ([0, 8, 20], [0, 2, 5])
    assert together.tokens.tolist() == one.tokens.tolist()
    assert together.probabilities.tolist() == pytest.approx(one.probabilities.tolist(), abs=1e-6)
    assert together.rest.tolist() == pytest.approx(one.rest.tolist(), abs=1e-6)
    tokens = ints(range(10, 17))
    single = driver.ask(GetLogprobsResult, GetLogprobs(embeds, ints([0, 2, 4, 5, 6, 7]), tokens))
    listed = driver.ask(GetLogprobsResult, GetLogprobs(embeds, ints([0, 4, 7]), tokens, ints([0, 2, 5])))
    assert listed.logprobs.tolist() == pytest.approx(single.logprobs.tolist(), abs=1e-5)


def test_a_list_that_is_wrong_fails_alone(driver: Driver) -> None:
    embeds = outputs(driver)
    wrong = (
        GetLogprobs(embeds, ints([0, 4, 7]), ints([1, 2, 3, 4, 5, 6, 7]), ints([0, 2, 5])),
        GetLogprobs(embeds, ints([0, 3, 5]), ints([1, 2, 3, 4, 5]), ints([0, 2, 5])),
        GetNextDist(embeds, ints([4, 9999]), np.ones(2, np.float32), ints([0, 2, 5])),
    )
    done = driver.run_wave(RunWave(50, "model", wrong))
    assert [(one.batch, one.command) for one in done.failures] == [(1, 0), (1, 1), (2, 1)]
    assert done.results[0] is not None
    assert done.results[1] is None
    assert isinstance(done.results[2], GetNextDistResult)
    assert done.results[2].indptr.tolist() == [0, 8, 8]


def test_log_probabilities_come_with_samples(driver: Driver) -> None:
    embeds = outputs(driver)[3:]
    result = driver.ask(SampleResult, sample_batch(embeds, alternatives=ints([2, 0])))
    dist = driver.ask(GetNextDistResult, dist_batch(embeds, 2))
    best = dist.tokens.reshape(2, 2)
    assert result.scored is not None
    assert result.logprobs is not None
    assert result.scored.tolist() == [best[0, 0], *best[0], best[1, 0]]
    assert np.exp(result.logprobs).tolist() == pytest.approx([*dist.probabilities[[0, 0, 1, 2]]], rel=1e-4)
