"""What a peer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..generation import Prompts


@dataclass(frozen=True)
class PeerRun:
    """Greedy tokens behind prompts of one length; all prompts, then all sequences together, step by step."""

    setting: str
    tokens: list[list[int]]
    prompt_seconds: float  # until the first token of each is there
    seconds_per_token: float  # between the first token and the last


class Peer(Protocol):
    """A loaded model. `settings`: ways to run it that a knowing user might choose; which is fastest is found out."""

    settings: Sequence[str]

    def generate(self, setting: str, prompts: Prompts, count: int) -> PeerRun:
        """`count` tokens, at least 2, for each of the prompts, which have one length."""


class PeerFactory(Protocol):
    """Loads a checkpoint in bfloat16 to compute with so many threads. ImportError where the peer is not installed."""

    def __call__(self, checkpoint: Path, threads: int) -> Peer: ...
