"""The plan of `gpu_bench`: how much it does, and on which device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..plans import refuse_unknown
from .shapes import SHAPES

PARTS = ("worker", "system", "transformers")
Device = Literal["cuda", "cpu"]
Attention = Literal["auto", "triton", "flashinfer", "torch"]


@dataclass(frozen=True)
class Plan:
    """Sequences have `prompt` tokens before the measured time and grow by `tokens` during it. The best of `rounds`
    counts. The `parts` are worker, system and transformers. Parts that do not fit `budget` seconds are left out. The
    worker has `attention`, as by its option."""

    models: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    warm_up: int
    rounds: int
    pages: int
    bandwidth_bytes: int  # size of the memory that is read to measure its rate
    parts: tuple[str, ...] = PARTS
    device: Device = "cuda"
    attention: Attention = "auto"
    budget: float = 450.0

    def __post_init__(self) -> None:
        refuse_unknown("model", self.models, tuple(SHAPES))
        refuse_unknown("part", self.parts, PARTS)

    @property
    def context(self) -> int:
        """Average tokens of a sequence during the measured time."""
        return self.prompt + self.tokens // 2


FULL = Plan(("llama-1b", "llama-3b", "llama-8b"), (1, 8, 32, 128), 128, 64, 8, 2, 2048, 4 << 30)
QUICK = Plan(("llama-1b",), (1, 32), 128, 32, 8, 1, 1024, 1 << 30)
TINY = Plan(("tiny",), (1, 3), 20, 6, 4, 1, 128, 1 << 20, device="cpu", budget=3600.0)
"""The plan for a machine without a GPU, to see that everything runs, however long it takes."""


def need(device: Device) -> None:
    """Exits if the device is a GPU and there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device; docs/gpu.md says how to try the benchmark on a CPU")


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts of random tokens, the same in every part."""
    tokens: list[list[int]] = np.random.default_rng(0).integers(0, vocab_size, (count, length)).tolist()
    return tokens
