"""The KV cache as FlashInfer sees it: by pages, and by single slots."""

from __future__ import annotations

import torch
from torch import Tensor

from ...device.flashinfer_library import FlashInfer
from ...device.tensors import upload
from ...kv_cache.pages import KvCache
from ...protocol import Array, Forward
from .. import page_tables, ragged
from ..ragged import Ragged
from .kernels import LAYOUT, Views

FEW_ROWS = 256
"""Rows that a graph has at most."""


class CacheViews:
    """Views of all layers, and the way new keys and values get there: FlashInfer takes each new row as a separate
    sequence with one page of one slot."""

    def __init__(self, cache: KvCache, library: FlashInfer) -> None:
        self.cache = cache
        self._append = library.append
        layers = [cache.layer(number) for number in range(cache.shape.num_layers)]
        self._pages = [page_tables.page_views(layer, cache.shape) for layer in layers]
        self._slots = [page_tables.slot_views(layer, cache.shape) for layer in layers]
        self._few = self._many = self._constants(FEW_ROWS)  # graphs hold the addresses of the few
        self._checked: tuple[Forward, Ragged] | None = None

    def check(self, batch: Forward) -> Ragged:
        """Like `ragged.check`, but checks a batch only once if it is first tested and then run. Raises BatchError."""
        if self._checked is None or self._checked[0] is not batch:
            self._checked = batch, ragged.check(batch, self.cache.shape.page_size, self.cache.num_pages)
        return self._checked[1]

    def _constants(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers from 0 to `rows`, zeros and ones, int32 [rows + 1]."""
        numbers = torch.arange(rows + 1, dtype=torch.int32, device=self.cache.device)
        return numbers, torch.zeros_like(numbers), torch.ones_like(numbers)

    def layer(self, layer: int, *, by_slots: bool) -> Views:
        """Keys and values of a layer, by slots or by pages."""
        return self._slots[layer] if by_slots else self._pages[layer]

    def places(self, slots: Array) -> Tensor:
        """The argument of `write` for these slots, int32 on the device."""
        if len(slots) >= len(self._many[0]):
            self._many = self._constants(2 * len(slots))
        return upload(torch.from_numpy(page_tables.slot_places(slots, self.cache.shape)), self.cache.device)

    def write(self, layer: int, key_value: Tensor, places: Tensor) -> None:
        """Writes keys and values to `places`. key_value: [rows, 2 * kv_heads, head_dim], keys before values."""
        rows, heads = len(key_value), self.cache.shape.num_kv_heads
        numbers, zeros, ones = self._few if rows <= FEW_ROWS else self._many
        self._append(
            key_value[:, :heads],
            key_value[:, heads:],
            numbers[:rows],
            zeros[:rows],
            self._slots[layer],
            places,
            numbers[: rows + 1],
            ones[:rows],
            LAYOUT,
        )
