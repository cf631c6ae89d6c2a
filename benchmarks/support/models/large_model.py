"""A server with a Llama of random weights, usually of a billion parameters, and the bounds of its speed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pie_control.client import Client
from pie_inference.device.threads import default_threads
from pie_inference.inspection.rates import Rates
from pie_inference.options import WorkerOptions

from ..costs import LlamaCosts, llama_costs
from ..generation import Generated, Prompts, run_inferlets
from ..guests import source
from ..rooflines import measure_apart
from ..server import serving
from .random_models import random_model

WARM_UP_TOKENS = 4
WARM_UP_PROMPT = 16
SEED = 7


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The part of a plan that says what is served: the model, the tree to serve it from if not this one, and options of
    the server. Raises OptionError."""

    model: str
    pages: int
    quantization: str = "none"
    kernels: str = "auto"
    max_isa: str = "auto"
    tree: Path | None = None

    def __post_init__(self) -> None:
        WorkerOptions(quantization=self.quantization, kernels=self.kernels, max_isa=self.max_isa)


@dataclass(frozen=True)
class LargeModel:
    """A model that is served."""

    client: Client
    program: str
    costs: LlamaCosts
    threads: int
    max_isa: str
    random: np.random.Generator

    def new_prompts(self, count: int, length: int) -> Prompts:
        """Prompts of printable bytes, which all our models have as tokens. They are the same in every run, but no two
        calls give prompts that begin alike: the server would compute their common part only once."""
        prompts: list[list[int]] = self.random.integers(32, 127, (count, length)).tolist()
        return prompts

    async def warm_up(self, count: int) -> None:
        """Runs this number of sequences for a short time."""
        await self.generate(self.new_prompts(count, WARM_UP_PROMPT), WARM_UP_TOKENS)

    async def generate(self, prompts: Prompts, tokens: int) -> Generated:
        return await run_inferlets(self.client, self.program, prompts, tokens, at_once=True)

    async def rates_now(self, read_bytes: int, gemm_size: int) -> Rates:
        """Measures the machine's rates now, because those of a virtual machine change. The model is idle meanwhile."""
        return await measure_apart(self.threads, read_bytes, gemm_size, self.max_isa)


@contextlib.asynccontextmanager
async def served(plan: ServedModel) -> AsyncIterator[LargeModel]:
    """Serves a model of `random_models` in bfloat16 or quantized, with a worker's default number of threads."""
    checkpoint = random_model(plan.model)
    costs = llama_costs(checkpoint, plan.quantization)
    threads = default_threads(int(costs.step_bytes(0, 0)))
    settings = {"model": checkpoint, "dtype": "bfloat16", "pages": plan.pages, "threads": threads}
    async with (
        serving(tree=plan.tree, **settings, **_given(plan)) as server,
        Client(server.url) as client,
    ):
        program = await client.upload(source("generate"), "generate")
        yield LargeModel(client, program, costs, threads, plan.max_isa, np.random.default_rng(SEED))


def _given(plan: ServedModel) -> dict[str, str]:
    """Options that are not at their defaults: other trees may lack them."""
    options = {"kernels": plan.kernels, "max_isa": plan.max_isa, "quantization": plan.quantization}
    return {name: value for name, value in options.items() if value != getattr(WorkerOptions, name)}
