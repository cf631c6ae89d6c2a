"""Embedding: vectors of whole texts, pooled from hidden states."""

from __future__ import annotations

from array import array
from binascii import a2b_base64
from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import HasQueue, embed_ranges, flag, queue_number, text, whole

__all__ = ["get_embedding"]


def get_embedding(
    queue: int | HasQueue,
    embeds: Embeds | Iterable[int],
    pooling: str = "last",
    dimensions: int = 0,
    normalize: bool = True,
) -> HostFuture[array[float]]:
    """One vector of the hidden states behind the last norm at output embeds, as an `array` of f32: the state at the
    last of them, or with `pooling="mean"` their mean. Its first `dimensions` numbers are kept (0: all), and then
    divided by their length unless `normalize` is False. At most `max_batch_tokens` embeds."""
    return HostFuture(ask_embedding(queue, embeds, pooling, dimensions, normalize), _await_vector)


def ask_embedding(
    queue: int | HasQueue, embeds: Embeds | Iterable[int], pooling: str, dimensions: int, normalize: bool
) -> int:
    """The future of `get_embedding`."""
    given = queue_number(queue), embed_ranges(embeds, "embeds"), text(pooling, "pooling")
    kept = whole(dimensions, "dimensions"), flag(normalize, "normalize")
    return int(call(bindings.embedding.get_embedding, *given, *kept))


def _await_vector(future: int) -> array[float]:
    return array("f", a2b_base64(bindings.core.await_text(future)))
