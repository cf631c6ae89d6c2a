"""Allocate: pages of the KV cache and embedding slots (paper, section 4.1).

Later calls may use the addresses at once; memory is bound when the queue reaches the command.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages, Slots, to_ranges
from inferlet_sdk.errors import call

__all__ = [
    "alloc_emb",
    "alloc_kvpage",
    "copy_kvpage",
    "dealloc_emb",
    "dealloc_kvpage",
    "trim_kvpage",
]


def alloc_kvpage(queue: int, count: int = 1) -> Pages:
    """Allocates pages; raises QuotaExceeded, or Exhausted if the whole pool is too small."""
    return Pages((call(bindings.allocate.alloc_kvpage, queue, count), count))


def dealloc_kvpage(queue: int, pages: Pages | Iterable[int]) -> None:
    """Frees pages once the commands issued before have taken effect. The addresses become invalid at once."""
    call(bindings.allocate.dealloc_kvpage, queue, to_ranges(pages))


def alloc_emb(queue: int, count: int = 1) -> Embeds:
    """Allocates embeds; raises QuotaExceeded, or Exhausted if the whole pool is too small."""
    return Embeds((call(bindings.allocate.alloc_emb, queue, count), count))


def dealloc_emb(queue: int, embeds: Embeds | Iterable[int]) -> None:
    """Frees embeds once the commands issued before have taken effect. The addresses become invalid at once."""
    call(bindings.allocate.dealloc_emb, queue, to_ranges(embeds))


def copy_kvpage(queue: int, source: Slots | Iterable[int], target: Slots | Iterable[int]) -> None:
    """Copies tokens from slots to as many slots; `pages.slots(page_size)[a:b]` names slots. Sources must be filled."""
    call(bindings.allocate.copy_kvpage, queue, to_ranges(source), to_ranges(target))


def trim_kvpage(queue: int, pages: Pages | Iterable[int], keep: int) -> None:
    """Keeps the first `keep` slots of the pages, counted along the list, and frees the others for new tokens."""
    call(bindings.allocate.trim_kvpage, queue, to_ranges(pages), keep)
