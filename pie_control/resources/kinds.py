"""The kinds of memory that inferlets allocate on a worker, as records. Pools, quotas and shortages go by them."""

from __future__ import annotations

from collections.abc import Callable

from pie_inference.protocol import ModelDescription


class Resource:
    """A kind of memory. There is one object for each, which crosses to another process as its `key`."""

    __slots__ = ("key", "name", "one", "pool_size")

    def __init__(self, key: str, name: str, one: str, pool_size: Callable[[ModelDescription], int]) -> None:
        """`pool_size`: how many a worker of a model has for inferlets."""
        self.key = key  # its attribute in quotas, usages, holdings and address spaces
        self.name = name  # plural, as in messages
        self.one = one
        self.pool_size = pool_size

    def __str__(self) -> str:
        return self.name


PAGES = Resource("pages", "KV pages", "KV page", lambda model: model.num_pages - model.scratch_pages)
EMBEDS = Resource("embeds", "embeds", "embed", lambda model: model.num_embeds)
STATES = Resource("states", "states of texts", "state of a text", lambda model: model.num_states)
RESOURCES = (PAGES, EMBEDS, STATES)


def charged(model: ModelDescription, resource: Resource, count: int) -> tuple[Resource, int]:
    """What quotas count for memory of a kind: states count as the pages of their size."""
    if resource is not STATES:
        return resource, count
    return PAGES, count * -(-model.state_bytes // max(model.page_bytes, 1))
