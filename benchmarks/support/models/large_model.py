"""A server with a Llama of random weights, usually of a billion parameters, and the bounds of its speed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pie_control.client import Client
from pie_inference.device.threads import default_threads

from .. import rooflines
from ..costs import BYTES, LlamaCosts, llama_costs
from ..generation import Generated, Prompts, run_inferlets
from ..guests import source
from ..rooflines import Rates
from ..server import serving
from .random_models import random_model

WARM_UP_TOKENS = 4
WARM_UP_PROMPT = 16
SEED = 7


@dataclass(frozen=True)
class LargeModel:
    """A model that is served."""

    client: Client
    program: str
    checkpoint: Path
    costs: LlamaCosts
    threads: int

    async def warm_up(self, prompts: Prompts) -> None:
        """Runs the same number of sequences for a short time."""
        await self.generate([prompt[:WARM_UP_PROMPT] for prompt in prompts], WARM_UP_TOKENS)

    async def generate(self, prompts: Prompts, tokens: int) -> Generated:
        return await run_inferlets(self.client, self.program, prompts, tokens, together=True)

    async def rates_now(self, read_bytes: int, gemm_size: int) -> Rates:
        """Measures the machine's rates now, because those of a virtual machine change. The model is idle meanwhile."""
        return await rooflines.measure_apart(self.threads, read_bytes, gemm_size)


@contextlib.asynccontextmanager
async def served(name: str, pages: int, tree: Path | None) -> AsyncIterator[LargeModel]:
    """Serves a model of `random_models` in bfloat16, with a worker's default number of threads."""
    checkpoint = random_model(name)
    costs = llama_costs(checkpoint)
    threads = default_threads(BYTES * (costs.layer_weights + costs.head_weights))
    settings = {"model": checkpoint, "dtype": "bfloat16", "pages": pages, "threads": threads}
    async with serving(tree=tree, **settings) as server, Client(server.url) as client:
        program = await client.upload(source("generate"), "generate")
        yield LargeModel(client, program, checkpoint, costs, threads)


def random_prompts(count: int, length: int) -> list[list[int]]:
    """Prompts of printable bytes, which all our models have as tokens. They are the same in every run."""
    tokens: list[list[int]] = np.random.default_rng(SEED).integers(32, 127, (count, length)).tolist()
    return tokens
