"""Allocate: pages of the KV cache and embedding slots (paper, section 4.1).

Later calls may use the addresses at once; memory is bound when the queue reaches the command.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages, Slots
from inferlet_sdk.dropped import give_back
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import HasQueue, embed_ranges, page_ranges, queue_number, slot_ranges, whole

__all__ = [
    "alloc_emb",
    "alloc_kvpage",
    "copy_emb",
    "copy_kvpage",
    "dealloc_emb",
    "dealloc_kvpage",
    "reserve_kvpage",
    "trim_kvpage",
]


def alloc_kvpage(queue: int | HasQueue, count: int = 1) -> Pages:
    """Allocates pages; raises QuotaExceeded, or Exhausted if the whole pool is too small."""
    return Pages(_alloc(queue, "KVPAGE", count))


def _alloc(queue: int | HasQueue, kind: str, count: int) -> tuple[int, int]:
    """First address, and how many there are."""
    number, count = queue_number(queue), whole(count, "count")
    give_back()
    return call(bindings.allocate.alloc, number, bindings.allocate.Memory[kind], count), count


def reserve_kvpage(queue: int | HasQueue, count: int = 1) -> Pages:
    """Addresses of pages for decode runs, which have no memory until a run reaches them. They count as pages that the
    inferlet holds; raises as `alloc_kvpage`."""
    return Pages(_alloc(queue, "RESERVED_KVPAGE", count))


def dealloc_kvpage(queue: int | HasQueue, pages: Pages | Iterable[int]) -> None:
    """Frees pages once the commands issued before have taken effect. The addresses become invalid at once."""
    _dealloc(queue, "KVPAGE", page_ranges(pages, "pages"))


def _dealloc(queue: int | HasQueue, kind: str, ranges: list[int]) -> None:
    call(bindings.allocate.dealloc, queue_number(queue), bindings.allocate.Memory[kind], ranges)


def alloc_emb(queue: int | HasQueue, count: int = 1) -> Embeds:
    """Allocates embeds; raises QuotaExceeded, or Exhausted if the whole pool is too small."""
    return Embeds(_alloc(queue, "EMB", count))


def dealloc_emb(queue: int | HasQueue, embeds: Embeds | Iterable[int]) -> None:
    """Frees embeds once the commands issued before have taken effect. The addresses become invalid at once."""
    _dealloc(queue, "EMB", embed_ranges(embeds, "embeds"))


def copy_kvpage(queue: int | HasQueue, source: Slots | Iterable[int], target: Slots | Iterable[int]) -> None:
    """Copies tokens from slots to as many slots; `pages.slots(page_size)[a:b]` names slots. Sources must be filled."""
    sources, targets = slot_ranges(source, "source"), slot_ranges(target, "target")
    call(bindings.allocate.copy_kvpage, queue_number(queue), sources, targets)


def copy_emb(queue: int | HasQueue, source: Embeds | Iterable[int], target: Embeds | Iterable[int]) -> None:
    """Copies embeds to as many others, with their positions: an output is an output there, too, and can be sampled
    without another forward. Sources must be filled."""
    sources, targets = embed_ranges(source, "source"), embed_ranges(target, "target")
    call(bindings.allocate.copy_emb, queue_number(queue), sources, targets)


def trim_kvpage(queue: int | HasQueue, pages: Pages | Iterable[int], keep: int) -> None:
    """Keeps the first `keep` slots of the pages, counted along the list, and frees the others for new tokens."""
    number = queue_number(queue)
    call(bindings.allocate.trim_kvpage, number, page_ranges(pages, "pages"), whole(keep, "keep"))
