"""OutputText: distributions over the next token (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture

__all__ = [
    "Dist",
    "get_logprobs",
    "get_next_dist",
]


@dataclass(frozen=True)
class Dist:
    """The most probable next tokens, most probable first."""

    tokens: list[int]
    probabilities: list[float]
    rest: float
    """Probability mass of all other tokens."""

    def max_index(self) -> int:
        """The most probable token (the name is from the paper's listing)."""
        return self.tokens[0]


def get_next_dist(queue: int, embed: int, k: int = 256, temperature: float = 1.0) -> HostFuture[Dist]:
    """The next-token distribution at an output embed, cut to `k` tokens, with logits divided by `temperature` (> 0)."""
    return HostFuture(call(bindings.output_text.get_next_dist, queue, embed, k, temperature), take_dist)


def take_dist(number: int) -> Dist:
    """The value of a done distribution future."""
    tokens, probabilities, rest = bindings.output_text.take_dist(number)
    return Dist(tokens, probabilities, rest)


def get_logprobs(queue: int, embed: int, tokens: Sequence[int]) -> HostFuture[list[float]]:
    """Log-probabilities of given tokens at an output embed."""
    number = call(bindings.output_text.get_logprobs, queue, embed, list(tokens))
    return HostFuture(number, bindings.output_text.take_logprobs)
