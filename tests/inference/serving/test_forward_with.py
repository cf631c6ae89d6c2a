"""Forwards with an adapter, a mask and what is read of them, in any combination, on a real worker: they give what a
worker gives whose weights have the adapter merged into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig
from pie_inference.cpu_kernels.library import find_library
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.triton_interpreter import Interpreter
from tests.helpers.adapters import make_adapter, merged
from tests.helpers.scheduling import Inferlet, World, beside, greedy

CLOSE = 1e-5
FILE = "model.safetensors"
PROMPT = [12, 200, 7, 91, 30, 4, 77, 150, 3, 61, 8]
EVERYWHERE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
TOKENS = list(range(0, 270, 7))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, Path]]:
    """Checkpoints with each adapter merged into them, "" with none; and the adapters."""
    folder = tmp_path_factory.mktemp("models")
    checkpoints = {"": make_checkpoint(folder / "plain")}
    adapters = {
        "large": make_adapter(folder / "large", rank=8, modules=EVERYWHERE, seed=1),
        "small": make_adapter(folder / "small", rank=2, modules=("self_attn.o_proj", "mlp.gate_proj"), seed=2),
    }
    for name, adapter in adapters.items():
        checkpoints[name] = make_checkpoint(folder / f"merged {name}")
        weights = merged(load_file(checkpoints[""] / FILE), adapter)
        save_file({key: value.contiguous() for key, value in weights.items()}, checkpoints[name] / FILE)
    return checkpoints, adapters


@pytest.fixture(params=["torch", "cpu", "triton"])
def run(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Callable[..., None]]:
    """Calls a function with this attention; kernels of Triton, in its interpreter."""
    form, threads = str(request.param), torch.get_num_threads()
    if form == "cpu" and find_library("auto", kernel_cache, torch.device("cpu")) is None:
        pytest.skip("the kernels cannot be built here")
    if form == "triton":
        interpreter: Interpreter = request.getfixturevalue("interpreter")
        yield lambda function, *arguments: interpreter.call(function, form, *arguments)
    else:
        yield lambda function, *arguments: function(form, *arguments)
        torch.set_num_threads(threads)


class Program:
    """An inferlet that makes all combinations; `told` is what it gets."""

    def __init__(self, world: World, adapter: str) -> None:
        self.world = world
        self.adapter = adapter
        self.inferlet: Inferlet = world.open(8, 40)
        self.pages, self.embeds = [self.inferlet.pages, 8], self.inferlet.embeds
        self.length = 0
        self._random = np.random.default_rng(5)

    def forward(self, read: dict[str, Any], tokens: list[int], mask: list[int] | None = None, outputs: int = 1) -> int:
        """Runs tokens behind the others; what is read of the last one, or the outputs."""
        positions = list(range(self.length, self.length + len(tokens)))
        inputs, at = [self.embeds, len(tokens)], [self.embeds + 30, outputs]
        given = beside(tokens, positions, mask or [], self.adapter, **read)
        future: int = self.inferlet.call("forward", 1, self.pages, inputs, self.pages, at, *given)
        self.length += inputs[1]
        return future

    def mask(self, count: int, ahead: bool) -> list[int]:
        """Any columns, and the input itself."""
        rows = []
        for n in range(count):
            last = self.length + (count if ahead else n + 1)
            seen = {int(column) for column in np.flatnonzero(self._random.random(last) < 0.6)} | {self.length + n}
            rows += [len(seen), *(number for column in sorted(seen) for number in (column, 1))]
        return rows

    def play(self) -> list[int]:
        """The futures of all that it reads."""
        futures = []
        self.forward({}, PROMPT, outputs=3)
        futures += [self._logprobs(n) for n in range(3)]
        self.forward({}, [5, 9, 33], self.mask(3, ahead=True), outputs=2)
        futures += [self._logprobs(n) for n in range(2)]
        futures.append(self.forward({"scores": True}, [70, 71], self.mask(2, ahead=False)))
        futures.append(self.forward({"scores": True}, [72, 73, 74]))
        for mask in (None, self.mask(2, ahead=True)):
            futures.append(self.forward({"sampler": greedy()}, [80, 81], mask))
            futures.append(self._logprobs(0))
        futures.append(self.forward({"k": 20, "temperature": 1.0}, [82], self.mask(1, ahead=False)))
        futures.append(self.forward({"k": 20, "temperature": 0.7}, [83, 84]))
        for token in (85, 86, 87, 88, 89, 90, 91, 92, 93):
            futures.append(self.forward({"k": 20, "temperature": 0.7}, [token]))
        return futures

    def _logprobs(self, output: int) -> int:
        future: int = self.inferlet.call("get_logprobs", 1, self.embeds + 30 + output, TOKENS)
        return future


def worker_of(checkpoint: Path, attention: str) -> Worker:
    sizes: dict[str, Any] = {"pages": 60, "embeds": 256, "max_batch_tokens": 24, "page_size": 8, "dtype": "float32"}
    return Worker(WorkerConfig(checkpoint, "model", attention=attention, threads=1, **sizes))


def answers(world: World, programs: Mapping[str, Program]) -> dict[str, list[Any]]:
    futures = {name: program.play() for name, program in programs.items()}
    world.drain()
    return {name: [programs[name].inferlet.answers[one] for one in futures[name]] for name in programs}


def compare(attention: str, checkpoints: dict[str, Path], adapters: dict[str, Path]) -> None:
    """All adapters at once on one worker, against each merged into its own."""
    world = World(model=worker_of(checkpoints[""], attention))
    world.load_adapters(adapters)
    found = answers(world, {name: Program(world, name) for name in checkpoints})
    for name, checkpoint in checkpoints.items():
        alone = World(model=worker_of(checkpoint, attention))
        wanted = answers(alone, {name: Program(alone, "")})[name]
        for number, (one, other) in enumerate(zip(found[name], wanted, strict=True)):
            for field, value in zip(one, other, strict=True):
                scale = max(1.0, float(np.abs(value).max()))
                assert np.abs(np.subtract(field, value, dtype=float)).max() <= CLOSE * scale, f"{name}: answer {number}"
    texts = {name: np.concatenate([np.ravel(field) for one in found[name] for field in one]) for name in found}
    assert not np.allclose(texts[""], texts["large"], atol=1e-2)
    assert not np.allclose(texts["large"], texts["small"], atol=1e-2)


def test_an_adapter_gives_what_its_merged_weights_give(
    run: Callable[..., None], models: tuple[dict[str, Path], dict[str, Path]]
) -> None:
    run(compare, *models)
