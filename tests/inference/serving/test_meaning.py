"""Random raw calls on a real worker, against the same model in float64 that runs them in the order of issue.

Before each program all pages and embeds are filled with NaN, as a former owner might leave them: whatever is not the
program's own must not reach its tokens. Answers agree within 1e-5, and behind each program all that is in its pages and
embeds is compared, too. A worker that computes in float64 must agree within 1e-12 there: so what differs in float32 is
rounding, and no key too many or too few, nor a wrong position. Triton's kernels run in its interpreter.

`PIE_WORKER_PROGRAMS=2000 pytest tests/inference/serving/test_meaning.py` runs more programs than usual; with
`PIE_WORKER_FIRST=1234`, from the one of seed 1234 on.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import find_library
from pie_inference.serving.worker import Worker
from testing.triton_interpreter import Interpreter
from testing.vision_checkpoint import make_vision_checkpoint
from tests.helpers.adapters import make_adapter
from tests.helpers.dense_llama import DenseLlama
from tests.helpers.issue_order import IssueOrder
from tests.helpers.languages import have_compiled
from tests.helpers.pictures import real_pictures
from tests.helpers.random_calls import POLICIES, play
from tests.helpers.scheduling import World, greedy
from tests.helpers.undecided import Undecided
from tests.helpers.whole_state import largest_difference, poison

FIRST = int(os.environ.get("PIE_WORKER_FIRST", "0"))
PROGRAMS = int(os.environ.get("PIE_WORKER_PROGRAMS", "15"))
SLOWER = 5  # interpreted kernels
PAGE_SIZE = 8
MOST_TOKENS = 8  # in a batch, so that most forwards are split


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    everywhere = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "large": make_adapter(folder / "large", rank=8, modules=everywhere, seed=1),
        "small": make_adapter(folder / "small", rank=2, modules=("self_attn.o_proj", "mlp.gate_proj"), seed=2),
    }


@dataclass(frozen=True)
class Form:
    """How a worker computes, and how far it may be from the reference, relative to the largest numbers compared."""

    attention: str
    dtype: str = "float32"
    close: float = 1e-5  # of what is answered: float32 in any case
    state: float = 1e-4  # of what is in memory
    logits: float = 1e-4  # of two that may change places

    def worker(self, checkpoint: Path) -> Worker:
        sizes: dict[str, Any] = {"pages": 60, "embeds": 256, "max_batch_tokens": MOST_TOKENS, "page_size": PAGE_SIZE}
        sizes["token_slots"] = 256  # each turn is followed by a check of all
        return Worker(WorkerConfig(checkpoint, "model", attention=self.attention, dtype=self.dtype, threads=1, **sizes))


FORMS = {
    "torch": Form("torch"),
    "cpu": Form("cpu"),
    "float64": Form("torch", "float64", close=2e-7, state=1e-12, logits=1e-5),
    "triton": Form("triton"),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, kernel_cache: Path) -> str:
    if request.param == "cpu" and find_library("auto", kernel_cache, torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    return str(request.param)


@pytest.fixture
def run(form: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Calls a function here or, for kernels of Triton, in its interpreter."""
    if form == "triton":
        interpreter: Interpreter = request.getfixturevalue("interpreter")
        yield interpreter.call
    else:
        threads = torch.get_num_threads()
        yield lambda function, *arguments: function(*arguments)
        torch.set_num_threads(threads)


def test_random_programs_are_told_what_their_calls_mean(
    form: str, run: Callable[..., None], checkpoint: Path, adapters: dict[str, Path]
) -> None:
    programs = -(-PROGRAMS // SLOWER) if form == "triton" else PROGRAMS
    run(run_programs, FORMS[form], checkpoint, adapters, range(FIRST, FIRST + programs))


def run_programs(form: Form, checkpoint: Path, adapters: dict[str, Path], seeds: range) -> None:
    worker, model = form.worker(checkpoint), DenseLlama(checkpoint, form.logits, adapters)
    made, undecided = Counter[str](), 0
    (description,) = worker.describe()
    assert worker._served.constraints is not None
    have_compiled(worker._served.constraints, description.vocab_size)
    assert description.vision is not None
    pictures = real_pictures(checkpoint, description.vision)
    for seed in seeds:
        poison(worker)
        choice = random.Random(seed)
        world = World(choice.choice(POLICIES)(), model=worker)
        world.load_adapters(adapters)
        meanings = [IssueOrder(PAGE_SIZE, MOST_TOKENS, model) for _ in range(choice.randint(1, 3))]
        try:
            for author in play(world, choice, meanings, made, form.close, pictures):
                if author.alive:
                    far = largest_difference(worker, world, author.inferlet.owner, author.means)
                    assert far < form.state, f"what is in memory differs by {far}"
                    made["compared"] += 1
        except Undecided:
            undecided += 1
        except AssertionError as error:
            raise AssertionError(f"program {seed}: {error}") from error
    assert undecided <= len(seeds) // 5
    assert made["sample"] + made["get_logprobs"] + made["get_next_dist"] >= len(seeds) // 2
    assert made["compared"] > len(seeds) // 2
    assert made["embed_img"] > len(seeds) // 2


@pytest.mark.parametrize("position", [None, 5, 9])
def test_an_output_that_is_fed_back_is_a_token_at_the_position_that_it_is_given(
    form: str, run: Callable[..., None], checkpoint: Path, position: int | None
) -> None:
    run(think, FORMS[form], checkpoint, position)


def think(form: Form, checkpoint: Path, position: int | None) -> None:
    """A chain of latent thoughts: each output is the next input. The prompt is at 0 to 4."""
    worker = form.worker(checkpoint)
    poison(worker)
    model, world = DenseLlama(checkpoint, form.logits), World(model=worker)
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
