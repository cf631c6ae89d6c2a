"""One sequence that `closed` generates, and what was asked for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np


class End(StrEnum):
    """Why a sequence ended, in the words of OpenAI's API."""

    LENGTH = "length"
    STOP = "stop"
    ERROR = "error"


@dataclass(frozen=True)
class Parameters:
    """How tokens are chosen, and when a sequence ends. `grammar`: as the worker compiles it; empty: none."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    grammar: str = ""


OnToken = Callable[[list[int], End | None], None]
"""Hears the tokens that came, and the end with the last of them."""


@dataclass(eq=False)
class Sequence:
    """`tokens`: the prompt and what is known behind it; `begun`: those whose keys are in the cache or under way;
    `sampled`: those chosen or under way."""

    tokens: list[int]
    parameters: Parameters
    on_token: OnToken
    prompt: int = 0
    row: int = -1
    begun: int = 0
    reused: int = 0  # tokens of the prompt that were cached
    sampled: int = 0
    pages: list[int] = field(default_factory=list)
    cached: int = 0  # pages at the front that are cached, or equal to such
    last_cached: int = 0  # the number of the last of them
    matcher: int = 0
    end: End | None = None
    error: str = ""
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.random = np.random.default_rng(self.parameters.seed)

    @property
    def generated(self) -> int:
        """Tokens known behind the prompt."""
        return len(self.tokens) - self.prompt

    @property
    def waits_for_matcher(self) -> bool:
        """Whether the worker has not yet shown that the grammar is compiled: nothing runs ahead until then."""
        return bool(self.matcher) and not self.generated

    @property
    def is_filled(self) -> bool:
        """Whether the whole prompt is in the cache or under way."""
        return self.begun >= self.prompt

    def finish(self, end: End) -> None:
        self.end = end
