"""The interface of a peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..generation import Prompts


@dataclass(frozen=True)
class PeerRun:
    """Greedy tokens behind prompts of equal length: first all prompts ran, then all sequences together, step by
    step."""

    setting: str
    tokens: list[list[int]]
    prompt_seconds: float  # until each sequence has its first token
    seconds_per_token: float  # between the first token and the last


class Peer(Protocol):
    """A loaded model. `settings`: ways to run it that an expert user might choose; a trial finds the fastest."""

    settings: Sequence[str]

    def generate(self, setting: str, prompts: Prompts, count: int) -> PeerRun:
        """Generates `count` tokens, at least 2, behind each prompt. All prompts have the same length."""


class PeerFactory(Protocol):
    """Loads a checkpoint in bfloat16, to compute with `threads` threads. Raises ImportError if the peer is not
    installed."""

    def __call__(self, checkpoint: Path, threads: int) -> Peer: ...
