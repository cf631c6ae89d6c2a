"""How near do linear layers on a CPU come to the machine's bounds, and how near do oneDNN's?

Distinct copies of one layer of Llama 1B are run in turn, so that weights come from memory and not from a cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pie_inference.cpu_kernels.library import find_library
from pie_inference.ops.choose import choose_ops
from pie_inference.ops.interface import Linear, Ops
from pie_inference.ops.torch_ops import TorchOps
from pie_inference.options import default_cache_dir

from ..support import rooflines

LLAMA_1B = ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))
"""Input and output features: queries, keys and values; their output; gate and up; down."""


@dataclass(frozen=True)
class Plan:
    """`rows`: rows at a time. `copies` of the layer run in turn. The best of `repeats` counts."""

    rows: tuple[int, ...]
    shapes: tuple[tuple[int, int], ...]
    copies: int
    repeats: int
    threads: int
    read_bytes: int = 1 << 30

    @property
    def weights(self) -> int:
        """Number of weights in one layer."""
        return sum(ins * outs for ins, outs in self.shapes)


FULL = Plan((1, 2, 4, 8, 16, 32, 64, 256, 1024), LLAMA_1B, copies=5, repeats=7, threads=2)
QUICK = Plan((1, 16), LLAMA_1B, copies=2, repeats=2, threads=2)


@dataclass(frozen=True)
class Row:
    """The linear layers of one Transformer layer. `bound_ms` is the least time that memory or multipliers need, at the
    measured rates."""

    kernels: str
    rows: int
    threads: int
    ms: float
    bound_ms: float
    of_bound: float


async def run(plan: Plan) -> list[Row]:
    """One row for each kind of kernels and number of rows."""
    return await asyncio.to_thread(_run, plan)


def _run(plan: Plan) -> list[Row]:
    rates = rooflines.measure(plan.threads, plan.read_bytes, plan.repeats)
    cpu = torch.device("cpu")
    own = choose_ops("auto", cpu, torch.bfloat16, find_library("auto", default_cache_dir(), cpu))
    kinds: dict[str, Ops] = {type(own).__name__: own, "TorchOps": TorchOps(cpu, torch.bfloat16)}
    with torch.inference_mode():
        layers = {name: _make_layers(ops, plan) for name, ops in kinds.items()}
        return [_row(name, layers[name], rows, plan, rates) for rows in plan.rows for name in kinds]


def _make_layers(ops: Ops, plan: Plan) -> list[Linear]:
    return [ops.linear([_random(outs, ins)], None) for _ in range(plan.copies) for ins, outs in plan.shapes]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def _row(name: str, layers: Sequence[Linear], rows: int, plan: Plan, rates: rooflines.Rates) -> Row:
    inputs = [_random(rows, ins) for ins, _ in plan.shapes] * plan.copies

    def multiply() -> None:
        for layer, each in zip(layers, inputs, strict=True):
            layer(each)

    seconds = min(_time(multiply) for _ in range(plan.repeats)) / plan.copies
    bound = rates.seconds(2 * plan.weights, 2 * plan.weights * rows)
    return Row(name, rows, plan.threads, seconds * 1e3, bound * 1e3, bound / seconds)


def _time(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
