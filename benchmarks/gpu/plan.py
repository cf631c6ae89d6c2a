"""How much `gpu_bench` does, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..plans import refuse_unknown
from .shapes import SHAPES

PARTS = ("worker", "system", "transformers")
Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Plan:
    """Sequences have `prompt` tokens before the time is taken and `tokens` after; the best of `rounds` counts. The
    `parts` are worker, system and transformers; what does not fit `budget` seconds is left out."""

    models: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    warm_up: int
    rounds: int
    pages: int
    bandwidth_bytes: int  # of the memory that is read to measure its rate
    parts: tuple[str, ...] = PARTS
    device: Device = "cuda"
    budget: float = 450.0

    def __post_init__(self) -> None:
        refuse_unknown("model", self.models, tuple(SHAPES))
        refuse_unknown("part", self.parts, PARTS)

    @property
    def context(self) -> int:
        """Tokens that a sequence has on average while the time is taken."""
        return self.prompt + self.tokens // 2


FULL = Plan(("llama-1b", "llama-3b", "llama-8b"), (1, 8, 32, 128), 128, 64, 8, 2, 2048, 4 << 30)
QUICK = Plan(("llama-1b",), (1, 32), 128, 32, 8, 1, 1024, 1 << 30)
TINY = Plan(("tiny",), (1, 3), 20, 6, 4, 1, 128, 1 << 20, device="cpu")
"""For a machine without a GPU: to see that everything runs."""


def need(device: Device) -> None:
    """Exits where there is no GPU to use."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this machine or this torch has no CUDA device; docs/gpu.md says how to try it out on a CPU")


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random tokens, the same in every part."""
    tokens: list[list[int]] = np.random.default_rng(0).integers(0, vocab_size, (count, length)).tolist()
    return tokens
