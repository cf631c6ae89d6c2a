"""The pools that a worker owns, sized from what memory is free once the model is loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import WorkerConfig
from ..device.machine import free_bytes_of_rank
from ..device.ranks import Ranks, share
from ..models.config import ModelConfig
from .copy_lane import make_lane
from .host_pages import HostPages
from .pages import KvCache, KvShape, lazy_zeros

MAX_PAGES = 65536
MAX_EMBEDS = 65536
MAX_EMBED_BYTES = 1 << 30
MAX_CPU_CACHE_BYTES = 4 << 30
MAX_HOST_BYTES = 4 << 30
MAX_SWAP_PAGES = 256
MAX_SWAP_BYTES = 64 << 20  # some 3 ms of a PCIe bus
HOST_MEMORY_SHARE = 0.1
MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.8}  # of the memory that is free once the model is loaded


def make_cache(
    config: WorkerConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device, ranks: Ranks
) -> KvCache:
    """Pages for this rank's share of the key-value heads."""
    kv_heads = share(ranks, model.num_kv_heads, "key-value heads")
    shape = KvShape(model.num_layers, kv_heads, model.head_dim, config.page_size, dtype)
    free = free_bytes_of_rank(device, ranks)
    return KvCache(shape, config.pages or fitting_pages(shape, device, free, ranks.size), device)


def fitting_pages(shape: KvShape, device: torch.device, free: int, ranks: int = 1) -> int:
    """How many pages a cache gets where `free` bytes are left for one of so many ranks once the model is loaded."""
    available = free * MEMORY_SHARE[device.type]
    if device.type == "cpu":
        available = min(available, MAX_CPU_CACHE_BYTES / ranks)
    return max(1, min(int(available // shape.page_bytes), MAX_PAGES))


def make_embeds(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[num_embeds, hidden_size]"""
    fitting = max(1, MAX_EMBED_BYTES // (model.hidden_size * dtype.itemsize))
    return lazy_zeros((config.embeds or min(MAX_EMBEDS, fitting), model.hidden_size), dtype, device)


def make_host_pages(config: WorkerConfig, cache: KvCache, ranks: Ranks) -> HostPages:
    """Pages on the host for this rank."""
    num_pages = config.host_pages if config.host_pages is not None else _fitting_host_pages(cache, ranks)
    fitting = max(1, MAX_SWAP_BYTES // cache.shape.page_bytes)
    return HostPages(cache, num_pages, min(num_pages, fitting, MAX_SWAP_PAGES), make_lane(cache.device))


def _fitting_host_pages(cache: KvCache, ranks: Ranks) -> int:
    free = free_bytes_of_rank(torch.device("cpu"), ranks)
    fitting = min(free * HOST_MEMORY_SHARE, MAX_HOST_BYTES / ranks.size)
    return min(MAX_PAGES, int(fitting // cache.shape.page_bytes))
