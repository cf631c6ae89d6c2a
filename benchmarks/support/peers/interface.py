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
    seconds_per_token: float  # between the first token and the last; 0 if there is only one


class Peer(Protocol):
    """A loaded model. `settings`: ways to run it that an expert user might choose; a trial finds the fastest."""

    settings: Sequence[str]

    def features(self) -> str:
        """What it uses of the processor."""

    def generate(self, setting: str, prompts: Prompts, count: int, room: int) -> PeerRun:
        """Generates `count` tokens behind each prompt. All prompts have the same length. The cache has room for `room`
        tokens of each sequence."""


class PeerFactory(Protocol):
    """Loads a checkpoint, to compute with `threads` threads. `form`, of the weights: bf16, int8 or int4. `compiles`:
    whether there are settings that compile the model. Raises ImportError if the peer is not installed."""

    def __call__(self, checkpoint: Path, form: str, threads: int, compiles: bool) -> Peer: ...
