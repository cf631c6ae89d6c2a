"""Chooses the sizes of a worker's pools, by the memory that is free once the model is loaded."""

from __future__ import annotations

import torch

from .pages import KvShape

MAX_PAGES = 65536
MAX_STATES = 4096
STATES_SHARE = 0.5  # of what a model that keeps states has for them and pages together
MAX_EMBEDS = 65536
MAX_EMBED_BYTES = 1 << 30
MAX_CPU_CACHE_BYTES = 4 << 30
MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.8}  # share of the memory that is free once the model is loaded


def fitting_pages(shape: KvShape, device: torch.device, free: int, ranks: int, state_bytes: int = 0) -> int:
    """The number of pages on a device, given `free` bytes for one of `ranks` ranks, beside states of `state_bytes`."""
    share = 1 - STATES_SHARE if state_bytes else 1.0
    return max(1, min(int(_available(device, free, ranks) * share // shape.page_bytes), MAX_PAGES))


def fitting_states(state_bytes: int, device: torch.device, free: int, ranks: int) -> int:
    """The number of states on a device, given `free` bytes for one of `ranks` ranks, beside pages."""
    return max(1, min(int(_available(device, free, ranks) * STATES_SHARE // state_bytes), MAX_STATES))


def _available(device: torch.device, free: int, ranks: int) -> float:
    """Bytes for pages and states."""
    available = free * MEMORY_SHARE[device.type]
    return min(available, MAX_CPU_CACHE_BYTES / ranks) if device.type == "cpu" else available


def fitting_embeds(hidden_size: int, dtype: torch.dtype) -> int:
    """The number of embeds in the pool."""
    return min(MAX_EMBEDS, max(1, MAX_EMBED_BYTES // (hidden_size * dtype.itemsize)))
