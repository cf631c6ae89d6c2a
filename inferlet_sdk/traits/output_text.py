"""OutputText: distributions over the next token (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import HasQueue, number, one_embed, queue_number, whole
from inferlet_sdk.traits.arguments import tokens as token_list

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


def get_next_dist(
    queue: int | HasQueue, embed: int | Embeds, k: int = 256, temperature: float = 1.0
) -> HostFuture[Dist]:
    """The next-token distribution at an output embed, cut to `k` tokens, with logits divided by `temperature` (> 0)."""
    future = call(
        bindings.output_text.get_next_dist,
        queue_number(queue),
        one_embed(embed),
        whole(k, "k"),
        number(temperature, "temperature"),
    )
    return HostFuture(future, await_dist)


def await_dist(future: int) -> Dist:
    """The value of a distribution future."""
    return Dist(*bindings.output_text.await_dist(future))


def get_logprobs(queue: int | HasQueue, embed: int | Embeds, tokens: Sequence[int]) -> HostFuture[list[float]]:
    """Log-probabilities of given tokens at an output embed."""
    arguments = queue_number(queue), one_embed(embed), token_list(tokens)
    future = call(bindings.output_text.get_logprobs, *arguments)
    return HostFuture(future, bindings.output_text.await_logprobs)
