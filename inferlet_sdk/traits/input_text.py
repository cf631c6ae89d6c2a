"""InputText: tokens to embeds (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import call
from inferlet_sdk.futures import TokenFuture
from inferlet_sdk.traits.arguments import HasQueue, embed_ranges, numbers, queue_number, references

__all__ = [
    "embed_txt",
]


def embed_txt(
    queue: int | HasQueue, tokens: Sequence[int | TokenFuture], positions: Sequence[int], embeds: Embeds | Iterable[int]
) -> None:
    """Fills embeds with tokens at positions; all three have the same length.

    A `TokenFuture` of the same queue may replace a token, before its value is known (paper, section 7.4).
    """
    call(
        bindings.input_text.embed_txt,
        queue_number(queue),
        references(tokens),
        numbers(positions, "positions", "a position"),
        embed_ranges(embeds, "embeds"),
    )
