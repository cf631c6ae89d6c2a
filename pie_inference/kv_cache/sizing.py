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
MAX_SWAP_PAGES = 256
MAX_SWAP_BYTES = 64 << 20  # about 3 ms on a PCIe bus
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


def fitting_swap_pages(shape: KvShape, num_host_pages: int) -> int:
    """The number of pages that may move at a time."""
    return min(num_host_pages, max(1, MAX_SWAP_BYTES // shape.page_bytes), MAX_SWAP_PAGES)


def fitting_host_states(num_host_pages: int, num_pages: int, num_states: int) -> int:
    """The number of states that the host has room for: as many for its pages as the device has for its own ones."""
    return -(-num_host_pages * num_states // num_pages)


def fitting_swap_states(state_bytes: int, num_host_states: int) -> int:
    """The number of states for which there is room on the device while they move."""
    return min(num_host_states, max(1, MAX_SWAP_BYTES // state_bytes))


def fitting_embeds(hidden_size: int, dtype: torch.dtype) -> int:
    """The number of embeds in the pool."""
    return min(MAX_EMBEDS, max(1, MAX_EMBED_BYTES // (hidden_size * dtype.itemsize)))
