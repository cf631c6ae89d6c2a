"""OutputText: distributions over the next token (paper, section 4.2)."""

from __future__ import annotations

from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import HasQueue, embed_ranges, number, one_embed, queue_number, whole
from inferlet_sdk.traits.arguments import tokens as token_list

__all__ = [
    "Dist",
    "get_logprobs",
    "get_logprobs_at",
    "get_next_dist",
    "get_next_dists",
]


class Dist:
    """The most probable next tokens, most probable first.

    It comes packed, and is unpacked as far as it is looked at: a list of 256 numbers costs a guest 25 us.
    """

    __slots__ = ("_packed", "_probabilities", "_tokens", "rest")

    def __init__(self, tokens: str, probabilities: str, rest: float) -> None:
        """`tokens` and `probabilities`: base64 of u32 and f32."""
        self._packed = tokens, probabilities
        self._tokens: list[int] | None = None
        self._probabilities: list[float] | None = None
        self.rest: float = rest
        """Probability mass of all other tokens."""

    def __repr__(self) -> str:
        return f"Dist(tokens={self.tokens}, probabilities={self.probabilities}, rest={self.rest})"

    @property
    def tokens(self) -> list[int]:
        """Token ids."""
        if self._tokens is None:
            self._tokens = array("I", a2b_base64(self._packed[0])).tolist()
        return self._tokens

    @property
    def probabilities(self) -> list[float]:
        """One for each of `tokens`."""
        if self._probabilities is None:
            self._probabilities = array("f", a2b_base64(self._packed[1])).tolist()
        return self._probabilities

    def max_index(self) -> int:
        """The most probable token (the name is from the paper's listing)."""
        if self._tokens is not None:
            return self._tokens[0]
        return int.from_bytes(a2b_base64(self._packed[0][:8])[:4], "little")


def get_next_dist(
    queue: int | HasQueue, embed: int | Embeds, k: int = 256, temperature: float = 1.0
) -> HostFuture[Dist]:
    """The next-token distribution at an output embed, cut to `k` tokens, with logits divided by `temperature` (> 0)."""
    return HostFuture(_ask(queue, [one_embed(embed), 1], k, temperature), await_dist)


def _ask(queue: int | HasQueue, embeds: list[int], k: int, temperature: float) -> int:
    """The future of distributions."""
    numbers = whole(k, "k"), number(temperature, "temperature")
    return int(call(bindings.output_text.get_next_dist, queue_number(queue), embeds, *numbers))


def await_dist(future: int) -> Dist:
    """The value of a distribution future."""
    return dist_of(bindings.output_text.await_dists(future))


def dist_of(value: tuple[str, str, list[float]]) -> Dist:
    """The only one of a value of `await-dists`."""
    tokens, probabilities, rest = value
    return Dist(tokens, probabilities, rest[0])


def get_next_dists(
    queue: int | HasQueue, embeds: Embeds | Iterable[int], k: int = 256, temperature: float = 1.0
) -> HostFuture[list[Dist]]:
    """Distributions at several output embeds, in one call and one future: at most 256, or what the operator of the
    worker has set."""
    return HostFuture(_ask(queue, embed_ranges(embeds, "embeds"), k, temperature), _await_dists)


def _await_dists(future: int) -> list[Dist]:
    tokens, probabilities, rest = bindings.output_text.await_dists(future)
    ids, values = a2b_base64(tokens), a2b_base64(probabilities)
    size = len(ids) // len(rest)
    parts = (slice(begin, begin + size) for begin in range(0, len(ids), size))
    return [
        Dist(b2a_base64(ids[part]).decode(), b2a_base64(values[part]).decode(), left)
        for part, left in zip(parts, rest, strict=True)
    ]


def get_logprobs_at(
    queue: int | HasQueue, embeds: Embeds | Iterable[int], tokens: Sequence[int]
) -> HostFuture[list[float]]:
    """Log-probabilities at several output embeds, in one call and one future. `tokens` has as many for each embed,
    those of the first embed first; so have the log-probabilities. As many embeds as `get_next_dists`."""
    arguments = queue_number(queue), embed_ranges(embeds, "embeds"), token_list(tokens)
    return HostFuture(call(bindings.output_text.get_logprobs, *arguments), bindings.core.await_floats)


def get_logprobs(queue: int | HasQueue, embed: int | Embeds, tokens: Sequence[int]) -> HostFuture[list[float]]:
    """Log-probabilities of given tokens at an output embed."""
    return get_logprobs_at(queue, Embeds((one_embed(embed), 1)), tokens)
