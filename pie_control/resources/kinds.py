"""The kinds of memory that inferlets allocate on a worker, as records. Pools, quotas and shortages go by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pie_inference.protocol import ModelDescription


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of memory. `key` is its attribute in quotas, usages, holdings and address spaces."""

    key: str
    name: str  # plural, as in messages
    one: str
    pool_size: Callable[[ModelDescription], int]
    """How many a worker of this model has for inferlets."""

    def __str__(self) -> str:
        return self.name


def scratch_pages(model: ModelDescription) -> int:
    """Pages for the tokens of one batch whose keys and values are dropped after it; the last ones of the cache."""
    return -(-model.max_batch_tokens // model.page_size)


PAGES = Resource("pages", "KV pages", "KV page", lambda model: model.num_pages - scratch_pages(model))
EMBEDS = Resource("embeds", "embeds", "embed", lambda model: model.num_embeds)
RESOURCES = (PAGES, EMBEDS)
