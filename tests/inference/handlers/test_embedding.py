"""get_embedding: vectors of hidden states, on one rank and on two."""

from __future__ import annotations

import numpy as np
import pytest

from pie_inference.protocol import Array, GetEmbedding, GetEmbeddingResult, RunWave
from testing.worker_batches import Driver, Extend, Keys, ints

SIZE = 64
"""Of a state."""


def embedding(
    embeds: Array, indptr: list[int], mean: list[bool], sizes: list[int], normalize: list[bool]
) -> GetEmbedding:
    return GetEmbedding(embeds, ints(indptr), np.array(mean), ints(sizes), np.array(normalize))


def outputs(driver: Driver) -> Array:
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3, 4, 5])]))
    return ints(driver.outputs + np.arange(5))


def test_states_are_pooled_cut_and_normalized(driver: Driver) -> None:
    embeds = outputs(driver)
    single = embedding(embeds, [0, 1, 2, 3, 4, 5], [False] * 5, [SIZE] * 5, [False] * 5)
    states = driver.ask(GetEmbeddingResult, single).vectors.reshape(5, SIZE)
    assert np.abs(states).max() > 0.1
    rows = np.concatenate([embeds[:2], embeds[1:4], embeds[:5], embeds[3:]])
    mixed = embedding(
        rows, [0, 2, 5, 10, 12], [False, True, True, False], [SIZE, SIZE, 7, 3], [True, False, True, False]
    )
    result = driver.ask(GetEmbeddingResult, mixed)
    assert result.indptr.tolist() == [0, SIZE, 2 * SIZE, 2 * SIZE + 7, 2 * SIZE + 10]
    wanted = states[1] / np.linalg.norm(states[1]), states[1:4].mean(0), states.mean(0)[:7], states[4][:3]
    found = np.split(result.vectors, result.indptr[1:-1])
    assert found[0] == pytest.approx(wanted[0], abs=1e-6)
    assert found[1] == pytest.approx(wanted[1], abs=1e-6)
    assert found[2] == pytest.approx(wanted[2] / np.linalg.norm(wanted[2]), abs=1e-6)
    assert found[3] == pytest.approx(wanted[3], abs=1e-6)


def test_a_command_that_is_wrong_fails_alone(driver: Driver) -> None:
    embeds = outputs(driver)
    right = [False, True]
    wrong = (
        embedding(embeds, [0, 2, 5], right, [4, SIZE + 1], right),
        embedding(embeds, [0, 0, 5], right, [4, 4], right),
        embedding(ints([*embeds[:4], 99999]), [0, 2, 5], right, [4, 4], right),
    )
    done = driver.run_wave(RunWave(50, "model", wrong))
    assert [(one.batch, one.command) for one in done.failures] == [(0, 1), (1, 0), (2, 1)]
    assert [result.indptr.tolist() for result in done.results if isinstance(result, GetEmbeddingResult)] == [
        [0, 4, 4],
        [0, 0, 4],
        [0, 4, 4],
    ]
