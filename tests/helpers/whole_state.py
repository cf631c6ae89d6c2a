"""What is in the memory of a real worker when random programs have ended, against what their calls mean."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pie_control.resources.holdings import Holdings
from pie_inference.serving.worker import Worker
from tests.helpers.issue_order import IssueOrder
from tests.helpers.scheduling import World


def poison(worker: Worker) -> None:
    """Fills all pages and embeds with NaN, as a former owner might leave them."""
    served = worker._served
    with torch.inference_mode():
        for layer in range(served.cache.shape.num_layers):
            served.cache.layer(layer).fill_(torch.nan)
        served.embeds.vectors.fill_(torch.nan)


def largest_difference(worker: Worker, world: World, owner: int, means: IssueOrder) -> float:
    """Between all keys, values and embeds that an inferlet has and those that it must have, relative to the largest
    number of each. Raises AssertionError where a position differs."""
    holdings: Holdings = vars(world.scheduler)["_accounts"][owner].holdings
    found = [*_keys(worker, holdings, means), *_embeds(worker, holdings, means)]
    return max((_difference(actual, expected) for actual, expected in found), default=0.0)


def _difference(actual: Tensor, expected: Tensor) -> float:
    assert not actual.isnan().any(), "what nobody has written is in use"
    return float((actual.double() - expected).abs().max() / expected.abs().max().clamp(min=1.0))


def _keys(worker: Worker, holdings: Holdings, means: IssueOrder) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each token, [layers, 2, kv_heads, dim]."""
    cache = worker._served.cache
    layers, heads, size = cache.shape.num_layers, cache.shape.num_kv_heads, cache.shape.page_size
    for address, slots in means.pages.items():
        for offset, held in enumerate(slots):
            if held is not None:
                key, position = held
                page = holdings.pages.physical[address]  # a page that was reserved may have none
                assert cache.positions[page * size + offset] == position, f"the position of page {address}, {offset}"
                rows = [cache.layer(layer)[page, :, offset].view(2, heads, -1) for layer in range(layers)]
                yield torch.stack(rows), key


def _embeds(worker: Worker, holdings: Holdings, means: IssueOrder) -> Iterator[tuple[Tensor, Tensor]]:
    for address, (value, _) in means.embeds.items():
        yield worker._served.embeds.vectors[holdings.embeds.physical[address]], value
