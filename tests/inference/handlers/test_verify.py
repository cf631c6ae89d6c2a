"""`Verify` gives the tokens that sampling step by step gives, whatever the drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.testing.fake_model import FakeModel
from pie_inference.config import WorkerConfig
from pie_inference.protocol import SampleResult, Verify, VerifyResult
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, indptr, ints, sample_batch

PROMPTS = (range(5, 30), range(40, 44), range(80, 120))
STEPS = 6


@dataclass(frozen=True)
class Sampler:
    """How one sequence samples."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


SAMPLERS = (Sampler(), Sampler(1.3), Sampler(0.8, top_k=40), Sampler(2.0, top_p=0.7), Sampler(1.5, min_p=0.1))
UNIFORM = np.random.default_rng(0).random((len(PROMPTS), STEPS))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def config(folder: Path, ranks: int = 1) -> WorkerConfig:
    return WorkerConfig(folder, "model", dtype="float32", pages=64, embeds=1024, tensor_parallel=ranks)


@pytest.fixture(scope="module")
def worker(checkpoint: Path) -> Worker:
    return Worker(config(checkpoint))


def step_by_step(driver: Driver, prompt: Sequence[int], sampler: Sampler, uniform: Sequence[float]) -> list[int]:
    """A token for each of `uniform`."""
    keys, tokens, pending = Keys(), list[int](), list(prompt)
    for each in uniform:
        embed, forward = driver.forward_batch([Extend(keys, pending)])
        sample = sample_batch(
            ints([driver.outputs + len(pending) - 1]),
            temperature=np.array([sampler.temperature], np.float32),
            top_k=ints([sampler.top_k]),
            top_p=np.array([sampler.top_p], np.float32),
            min_p=np.array([sampler.min_p], np.float32),
            uniform=np.array([each]),
        )
        result = driver.run(embed, forward, sample)[-1]
        assert isinstance(result, SampleResult)
        pending = [int(result.tokens[0])]
        tokens += pending
    return tokens


def check_drafts(driver: Driver, drafts: Sequence[Sequence[int]], samplers: Sequence[Sampler]) -> list[list[int]]:
    """One wave for all prompts, each with its draft; the tokens that it gives."""
    parts = [Extend(Keys(), [*prompt, *draft]) for prompt, draft in zip(PROMPTS, drafts, strict=True)]
    embed, forward = driver.forward_batch(parts)
    ends = np.cumsum([len(part.tokens) for part in parts])
    rows = [range(end - len(draft) - 1, end) for end, draft in zip(ends, drafts, strict=True)]
    verify = Verify(
        embeds=ints([driver.outputs + row for each in rows for row in each]),
        indptr=indptr([len(each) for each in rows]),
        draft=ints([token for draft in drafts for token in (*draft, -1)]),
        temperature=np.array([each.temperature for each in samplers], np.float32),
        top_k=ints([each.top_k for each in samplers]),
        top_p=np.array([each.top_p for each in samplers], np.float32),
        min_p=np.array([each.min_p for each in samplers], np.float32),
        uniform=np.concatenate([UNIFORM[n, : len(draft) + 1] for n, draft in enumerate(drafts)]),
    )
    result = driver.run(embed, forward, verify)[-1]
    assert isinstance(result, VerifyResult)
    pairs = zip(drafts, result.accepted.tolist(), result.tokens.tolist(), strict=True)
    return [[*draft[:accepted], token] for draft, accepted, token in pairs]


def check(driver: Driver, samplers: Sequence[Sampler], lengths: Sequence[int], right: Sequence[int]) -> None:
    """Drafts of these lengths, of which so many tokens are right."""
    expected = [step_by_step(driver, *each) for each in zip(PROMPTS, samplers, UNIFORM, strict=True)]
    drafts = [
        [token if n < count else (token + 1) % 250 for n, token in enumerate(tokens[:length])]
        for tokens, length, count in zip(expected, lengths, right, strict=True)
    ]
    found = check_drafts(driver, drafts, samplers)
    for tokens, given_tokens, length, count in zip(expected, found, lengths, right, strict=True):
        assert given_tokens == tokens[: min(length, count) + 1]


DRAFTS = st.tuples(*[st.integers(0, STEPS - 1)] * len(PROMPTS))


@settings(max_examples=25, deadline=None)
@given(samplers=st.tuples(*[st.sampled_from(SAMPLERS)] * len(PROMPTS)), lengths=DRAFTS, right=DRAFTS)
def test_the_fake_model_verifies_as_it_samples(
    samplers: Sequence[Sampler], lengths: Sequence[int], right: Sequence[int]
) -> None:
    check(Driver(FakeModel().run, "fake"), samplers, lengths, right)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize(("lengths", "right"), [((5, 3, 0), (5, 1, 0)), ((2, 4, 5), (0, 4, 3))])
def test_a_worker_verifies_as_it_samples(
    worker: Worker, sampler: Sampler, lengths: Sequence[int], right: Sequence[int]
) -> None:
    check(Driver(worker.run, "model"), [sampler] * len(PROMPTS), lengths, right)


def test_parameters_are_those_of_the_command(worker: Worker) -> None:
    check(Driver(worker.run, "model"), SAMPLERS[1:4], (5, 5, 5), (2, 5, 0))


def test_ranks_agree_on_the_tokens(checkpoint: Path) -> None:
    with WorkerGroup(config(checkpoint, 2), Worker) as group:
        check(Driver(group.run, "model"), SAMPLERS[:3], (5, 5, 5), (2, 5, 0))
