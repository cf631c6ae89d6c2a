"""How much `gpu_bench` does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """Sequences have `prompt` tokens before the time is taken and `tokens` after; the best of `rounds` counts."""

    models: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    warm_up: int
    rounds: int
    pages: int
    bandwidth_bytes: int  # of the memory that is read to measure its rate

    @property
    def context(self) -> int:
        """Tokens that a sequence has on average while the time is taken."""
        return self.prompt + self.tokens // 2


FULL = Plan(("llama-1b", "llama-3b", "llama-8b"), (1, 8, 32, 128), 128, 64, 8, 2, 2048, 4 << 30)
QUICK = Plan(("llama-1b",), (1, 32), 128, 32, 8, 1, 1024, 1 << 30)
TINY = Plan(("tiny",), (1, 3), 20, 6, 4, 1, 128, 1 << 20)
"""For a machine without a GPU: to see that everything runs."""

PLANS = {"full": FULL, "quick": QUICK, "tiny": TINY}


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random tokens, the same in every part."""
    tokens: list[list[int]] = np.random.default_rng(0).integers(0, vocab_size, (count, length)).tolist()
    return tokens
