"""The kinds of memory that inferlets allocate on a worker. A further kind is one more record here, and its pool."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of memory: how it is called in messages, and the call that allocates it."""

    name: str  # plural, as in "KV pages"
    one: str
    allocated_by: str

    def __str__(self) -> str:
        return self.name


PAGES = Resource("KV pages", "KV page", "alloc-kvpage")
EMBEDS = Resource("embeds", "embed", "alloc-emb")
RESOURCES = (PAGES, EMBEDS)
