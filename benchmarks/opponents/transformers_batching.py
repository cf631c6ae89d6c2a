"""How fast is transformers' continuous batching, beside `closed` on the same checkpoint?

`concurrent` requests come at once, each with a prompt of its own; the time runs from the first one to the last token of
all, prompts included, behind a trial of the same size with other prompts. transformers runs in a process of its own,
with as many threads as the worker. Where it cannot run, or takes longer than `limit` seconds, `note` says so.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..report import ROOT
from ..support.processes import stop
from ..support.samples import median
from ..support.server import CLOSED, serving
from .client import CompletionClient
from .sides import PACED, check_models, checkpoint_of, settings_of, threads_for

PAGE = 256
"""Tokens in a page of transformers' cache."""
RANDOM_160M = "random-160m"


@dataclass(frozen=True)
class Plan:
    """Prompts have `prompt` tokens, and `tokens` tokens are generated; medians of `rounds`."""

    models: tuple[str, ...]
    concurrent: int
    rounds: int
    prompt: int = 64
    tokens: int = 32
    limit: float = 600.0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_models(self.models)
        if any(model.startswith(PACED) for model in self.models):
            raise ValueError("transformers runs models, not paces: name a model")


FULL = Plan(("demo", RANDOM_160M), concurrent=32, rounds=3)
QUICK = Plan(("demo",), concurrent=8, rounds=1, limit=120.0)


@dataclass(frozen=True)
class Row:
    """`ratio`: how many times as fast `closed` is."""

    model: str
    concurrent: int
    closed_tokens_s: float
    transformers_tokens_s: float | None
    ratio: float | None
    note: str


async def run(plan: Plan) -> list[Row]:
    """A row for each model; one side runs after the other."""
    return [await _measure(plan, model) for model in plan.models]


async def _measure(plan: Plan, model: str) -> Row:
    folder = checkpoint_of(model)
    threads = threads_for(folder)
    settings = {**settings_of(model), "threads": threads, "device": plan.device}
    async with serving(CLOSED, **settings) as server, CompletionClient(server.url) as client:
        times = [await _closed(plan, client, number) for number in range(plan.rounds + 1)]
    told = await _transformers(plan, folder, threads)
    count = plan.concurrent * plan.tokens
    closed = round(count / median(times[1:]), 1)
    if isinstance(told, str):
        return Row(model, plan.concurrent, closed, None, None, told)
    theirs = round(count / median(told[1:]), 1)
    return Row(model, plan.concurrent, closed, theirs, round(closed / theirs, 2), "")


def make_prompts(concurrent: int, length: int, number: int) -> list[list[int]]:
    """Those of one round."""
    found: list[list[int]] = np.random.default_rng(number).integers(65, 250, (concurrent, length)).tolist()
    return found


async def _closed(plan: Plan, client: CompletionClient, number: int) -> float:
    prompts = make_prompts(plan.concurrent, plan.prompt, number)
    asked: dict[str, Any] = {"max_tokens": plan.tokens, "temperature": 0, "ignore_eos": True}
    start = time.perf_counter()
    await asyncio.gather(*(client.complete(prompt=prompt, **asked) for prompt in prompts))
    return time.perf_counter() - start


async def _transformers(plan: Plan, folder: Path, threads: int) -> list[float] | str:
    """Seconds of each round, or why there are none."""
    words = [str(folder), plan.device, *map(str, (threads, plan.concurrent, plan.prompt, plan.tokens, plan.rounds + 1))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, errors = await asyncio.wait_for(process.communicate(), plan.limit)
    except TimeoutError:
        return f"not done within {plan.limit:g} s"
    finally:
        await stop(process)
    if process.returncode:
        return "does not run here: " + errors.decode(errors="replace").strip().rpartition("\n")[2][:200]
    times: list[float] = json.loads(said.decode().strip().rpartition("\n")[2])
    return times


def _serve(folder: str, device: str, *numbers: str) -> list[float]:
    """In the process of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    threads, concurrent, prompt, tokens, rounds = map(int, numbers)
    torch.set_num_threads(threads)
    place = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if place == "cuda" else torch.float32
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    loaded = loaded.to(place).eval()
    make_config: Any = GenerationConfig
    config = make_config(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    pages = concurrent * (2 + (prompt + tokens) // PAGE)
    cache = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=max(1024, concurrent))
    times = []
    for number in range(rounds):
        start = time.perf_counter()
        prompts = make_prompts(concurrent, prompt, number)
        done = loaded.generate_batch(prompts, config, cache, persistent_manager=True)
        times.append(time.perf_counter() - start)
        if any(len(one.generated_tokens) != tokens for one in done.values()) or len(done) != concurrent:
            raise RuntimeError("it did not generate all tokens")
    return times


if __name__ == "__main__":
    print(json.dumps(_serve(*sys.argv[1:])))
