"""Random raw calls on a real worker, against the same model in float64 that runs them in the order of issue.

Before each program all pages and embeds are filled with NaN, as a former owner might leave them: whatever is not the
program's own must not reach its tokens. Answers agree within 1e-5, and behind each program all that is in its pages and
embeds is compared, too. A worker that computes in float64 must agree within 1e-12 there: so what differs in float32 is
rounding, and no key too many or too few, nor a wrong position.

`PIE_WORKER_PROGRAMS=2000 pytest tests/inference/serving/test_meaning.py` runs more programs than usual; with
`PIE_WORKER_FIRST=1234`, from the one of seed 1234 on.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import find_library
from pie_inference.serving.worker import Worker
from pie_inference.testing.checkpoints import make_checkpoint
from tests.helpers.dense_llama import DenseLlama, Undecided
from tests.helpers.issue_order import IssueOrder
from tests.helpers.random_calls import POLICIES, play
from tests.helpers.scheduling import World, greedy
from tests.helpers.whole_state import largest_difference, poison

FIRST = int(os.environ.get("PIE_WORKER_FIRST", "0"))
PROGRAMS = int(os.environ.get("PIE_WORKER_PROGRAMS", "15"))
PAGE_SIZE = 8
MOST_TOKENS = 8  # in a batch, so that most forwards are split


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@dataclass(frozen=True)
class Served:
    """A worker, and how far it may be from the reference, relative to the largest numbers compared."""

    worker: Worker
    close: float  # of what is answered
    state: float  # of what is in memory
    logits: float  # of two that may change places


FORMS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "torch": ({"attention": "torch", "dtype": "float32"}, {"close": 1e-5, "state": 1e-4, "logits": 1e-4}),
    "cpu": ({"attention": "cpu", "dtype": "float32"}, {"close": 1e-5, "state": 1e-4, "logits": 1e-4}),
    "float64": ({"attention": "torch", "dtype": "float64"}, {"close": 2e-7, "state": 1e-12, "logits": 1e-5}),
}
"""Answers are float32 in any case."""


@pytest.fixture(scope="module", params=FORMS)
def served(request: pytest.FixtureRequest, checkpoint: Path, kernel_cache: Path) -> Iterator[Served]:
    options, bounds = FORMS[request.param]
    if request.param == "cpu" and find_library("auto", kernel_cache, torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    sizes: dict[str, Any] = {"pages": 60, "embeds": 256, "max_batch_tokens": MOST_TOKENS, "page_size": PAGE_SIZE}
    threads = torch.get_num_threads()
    yield Served(Worker(WorkerConfig(checkpoint, "model", threads=1, **options, **sizes)), **bounds)
    torch.set_num_threads(threads)


def test_random_programs_are_told_what_their_calls_mean(served: Served, checkpoint: Path) -> None:
    model, made, undecided = DenseLlama(checkpoint, served.logits), Counter[str](), 0
    for seed in range(FIRST, FIRST + PROGRAMS):
        poison(served.worker)
        choice = random.Random(seed)
        world = World(choice.choice(POLICIES)(), model=served.worker)
        meanings = [IssueOrder(PAGE_SIZE, MOST_TOKENS, model) for _ in range(choice.randint(1, 3))]
        try:
            for author in play(world, choice, meanings, made, served.close):
                if author.alive:
                    far = largest_difference(served.worker, world, author.inferlet.owner, author.means)
                    assert far < served.state, f"what is in memory differs by {far}"
                    made["compared"] += 1
        except Undecided:
            undecided += 1
        except AssertionError as error:
            raise AssertionError(f"program {seed}: {error}") from error
    assert undecided < max(1, PROGRAMS // 5)
    assert made["sample"] + made["get_logprobs"] > PROGRAMS
    assert made["compared"] > PROGRAMS // 2


@pytest.mark.parametrize("position", [None, 5, 9])
def test_an_output_that_is_fed_back_is_a_token_at_the_position_that_it_is_given(
    served: Served, checkpoint: Path, position: int | None
) -> None:
    """A chain of latent thoughts: each output is the next input. The prompt is at 0 to 4."""
    poison(served.worker)
    model, world = DenseLlama(checkpoint), World(model=served.worker)
    prompt, thoughts = [12, 200, 7, 91, 30], 3
    inferlet = world.open(4, 16)
    inferlet.embed(0, 5, tokens=prompt)
    inferlet.forward(0, 5, 8)
    keys, [*_, latent] = model.run([], [(model.embed(token), n) for n, token in enumerate(prompt)])
    seen = [(key, n) for n, key in enumerate(keys)]
    for thought in range(thoughts):
        at = 4 if position is None else position + thought
        if position is not None:
            inferlet.call("set_positions", 1, [at], [inferlet.embeds + 8 + thought, 1])
        inferlet.forward(8 + thought, 1, 9 + thought)
        [key], [latent] = model.run(seen, [(latent, at)])
        seen.append((key, at))
    with suppress(Undecided):
        future = inferlet.call("sample", 1, inferlet.embeds + 8 + thoughts, greedy())
        world.drain()
        assert inferlet.token(future) == model.most_probable(latent)
