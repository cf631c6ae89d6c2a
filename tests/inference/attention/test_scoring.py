"""How much attention each key gets, against transformers' attention that returns its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from pie_inference.attention.torch import scoring
from pie_inference.config import WorkerConfig
from pie_inference.protocol import (
    Forward,
    ForwardWithScores,
    ForwardWithScoresResult,
    GetLogprobs,
    GetLogprobsResult,
    LoadAdapter,
    RunWave,
)
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, indptr, ints
from tests.helpers.adapters import make_adapter
from tests.helpers.families import FAMILIES, save_reference

VOCAB = 272
OPTIONS: dict[str, Any] = {"pages": 64, "host_pages": 8, "embeds": 1024, "dtype": "float32", "threads": 1}
TOKENS = [12, 200, 7, 91, 30, 4, 77, 101, 55, 8, 9, 33] * 4
NAMES = ["llama", "gemma2", "gemma3", "mistral", "phi3", "granite", "mixtral"]


def scored(forward: Forward) -> ForwardWithScores:
    return ForwardWithScores(**msgspec.structs.asdict(forward))


def scores_of(driver: Driver, *parts: Extend) -> list[np.ndarray]:
    """The scores of the keys of each sequence, which are extended in one batch."""
    embed, forward = driver.forward_batch(parts)
    result = driver.ask(ForwardWithScoresResult, embed, scored(forward))
    return np.split(result.scores, result.indptr[1:-1])


def expected_scores(reference: Any, tokens: list[int], first: int) -> np.ndarray:
    """What the queries from `first` on give to each token, by weights that transformers returns."""
    with torch.no_grad():
        weights = reference(torch.tensor([tokens]), output_attentions=True).attentions
    mass: np.ndarray = torch.stack([layer[0, :, first:].sum(1) for layer in weights]).mean((0, 1)).numpy()
    return mass


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_weights_of_transformers(name: str, tmp_path: Path) -> None:
    """Grouped queries, windows, capped scores; a prompt, more tokens behind it, and one, beside other sequences."""
    architecture, settings = FAMILIES[name]
    reference = save_reference(tmp_path, architecture, **settings)
    driver = Driver(Worker(WorkerConfig(tmp_path, "model", **OPTIONS)).run, "model")
    keys, other = Keys(), Keys()
    first = 0
    for count in (30, 17, 1):
        end = first + count
        own, beside = scores_of(driver, Extend(keys, TOKENS[first:end]), Extend(other, TOKENS[:3]))
        np.testing.assert_allclose(own, expected_scores(reference, TOKENS[:end], first), atol=1e-5)
        np.testing.assert_allclose([own.sum(), beside.sum()], [count, 3], rtol=1e-5)
        first = end


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("attention", ["torch", "auto"])
def test_outputs_and_keys_are_those_of_a_forward(
    attention: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an adapter, and where queries go in several pieces."""
    monkeypatch.setattr(scoring, "MOST_WEIGHTS", 500)
    worker = Worker(WorkerConfig(checkpoint, "model", attention=attention, **OPTIONS))
    assert worker.load_adapter(LoadAdapter(0, str(make_adapter(tmp_path)))).error is None
    found = []
    for change in (scored, lambda forward: forward):
        driver, keys, tables = Driver(worker.run, "model"), [Keys(), Keys()], []
        for part, adapters in ((TOKENS[:20], [-1, 0]), (TOKENS[20:21], [0, -1])):
            embed, forward = driver.forward_batch([Extend(one, part) for one in keys])
            forward = msgspec.structs.replace(forward, adapters=ints(adapters))
            count = 2 * len(part)
            rows = ints(range(count))
            score = GetLogprobs(rows + driver.outputs, indptr([VOCAB] * count), ints(list(range(VOCAB)) * count))
            tables.append(driver.ask(GetLogprobsResult, embed, change(forward), score).logprobs)
        found.append(np.concatenate(tables))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_masks_decide_who_is_looked_at(checkpoint: Path) -> None:
    driver = Driver(Worker(WorkerConfig(checkpoint, "model", **OPTIONS)).run, "model")
    keys = Keys()
    driver.run(*driver.forward_batch([Extend(keys, TOKENS[:20])]))
    mask = np.ones((3, 23), bool)
    mask[:, [2, 5, 11]] = False
    mask[1] = False  # sees nothing
    [scores] = scores_of(driver, Extend(keys, TOKENS[:3], mask))
    assert (scores[[2, 5, 11]] == 0).all()
    assert (scores[mask[0]] > 0).all()
    np.testing.assert_allclose(scores.sum(), 2, rtol=1e-5)


def test_a_command_that_fails_leaves_the_scores_of_others(checkpoint: Path) -> None:
    worker = Worker(WorkerConfig(checkpoint, "model", **OPTIONS))
    driver = Driver(worker.run, "model")
    keys = [Keys(), Keys()]
    [first, _] = scores_of(driver, *(Extend(one, TOKENS[:5]) for one in keys))
    embed, forward = driver.forward_batch([Extend(Keys(), TOKENS[:5]), Extend(Keys(), TOKENS[:5])])
    wrong = msgspec.structs.replace(scored(forward), kv_pages=forward.kv_pages + ints([0, 1000]))
    done = worker.run(RunWave(5, "model", (embed, wrong)))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(1, 1)]
    result = done.results[1]
    assert isinstance(result, ForwardWithScoresResult)
    assert result.indptr.tolist() == [0, 5, 5]
    np.testing.assert_allclose(result.scores, first, atol=1e-6)
