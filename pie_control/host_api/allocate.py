"""allocate.wit: pages of the KV cache and embedding slots (paper, section 4.1)."""

from __future__ import annotations

from ..inferlets.inferlet import Inferlet
from .handles import clock, queue_of


def alloc_kvpage(inferlet: Inferlet, queue: int, count: int) -> int:
    found = queue_of(inferlet, queue)
    return found.account.alloc_kvpage(found.number, count, clock())


def dealloc_kvpage(inferlet: Inferlet, queue: int, pages: list[int]) -> None:
    found = queue_of(inferlet, queue)
    found.account.dealloc_kvpage(found.number, pages, clock())


def alloc_emb(inferlet: Inferlet, queue: int, count: int) -> int:
    found = queue_of(inferlet, queue)
    return found.account.alloc_emb(found.number, count, clock())


def dealloc_emb(inferlet: Inferlet, queue: int, embeds: list[int]) -> None:
    found = queue_of(inferlet, queue)
    found.account.dealloc_emb(found.number, embeds, clock())


def copy_kvpage(inferlet: Inferlet, queue: int, source: list[int], target: list[int]) -> None:
    found = queue_of(inferlet, queue)
    found.account.copy_kvpage(found.number, source, target, clock())


def trim_kvpage(inferlet: Inferlet, queue: int, pages: list[int], keep: int) -> None:
    found = queue_of(inferlet, queue)
    found.account.trim_kvpage(found.number, pages, keep, clock())
