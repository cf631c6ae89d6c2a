"""The paged key-value cache: the pages of all layers, addressed by slot numbers (page * page_size + offset)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..device.host_memory import lazy_zero_bytes
from ..device.tensors import index_tensor, tensor, upload
from ..errors import BatchError
from ..ops.interface import Rotation
from ..protocol import Array
from .page_copies import Copies, Move, split_copies

WORK_BYTES = 12
"""A number of a key takes at most so many in `Turn`, with its copy; only those of float64 take more."""


class Turn:
    """Rotates up to `heads` heads in memory of its own, in at least float32, whatever the cache has."""

    def __init__(self, heads: int, like: Rotation) -> None:
        """`like`: a rotation, whose rows and dtype those of all others are."""
        rows, dim = len(like.cos), like.dim
        self._before, self._after = (
            torch.empty(heads, rows, dim, dtype=like.cos.dtype, device=like.cos.device) for _ in range(2)
        )

    def __call__(self, keys: Tensor, rotation: Rotation) -> None:
        """Rotates the first dimensions of keys [heads, M, head_dim] in place; it takes no further memory."""
        half, turned = rotation.dim // 2, keys[..., : rotation.dim]
        before, after = self._before[: len(keys)], self._after[: len(keys)]
        cos, sin = rotation.cos.squeeze(1), rotation.sin.squeeze(1)
        before.copy_(turned)
        torch.mul(before, cos, out=after)
        after[..., :half].addcmul_(before[..., half:], sin[..., :half])
        after[..., half:].addcmul_(before[..., :half], sin[..., half:])
        turned.copy_(after)


STAGED_BYTES = 32 << 20
"""Memory that a copy takes beside the cache: one head's part of all its slots, or this."""


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On a CPU they take memory only when they are first written (torch.zeros writes them at once), in huge
    pages."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(lazy_zero_bytes(math.prod(shape) * dtype.itemsize)).view(dtype).view(shape)


@dataclass(frozen=True)
class KvShape:
    """Sizes and number format of a cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Memory of one page in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.page_size * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True)
class Slots:
    """Slot numbers on the host, and the same slots as page numbers and offsets, both int64 [M] on the cache's
    device."""

    numbers: Array  # int32 [M]
    pages: Tensor
    offsets: Tensor


class KvCache:
    """Pages of keys and values.

    A layer is a tensor [num_pages + 1, 2 * num_kv_heads, page_size, head_dim], keys before values. So one head's part
    of a page is contiguous: gathering it reads long pieces and gives the layout of a batched matrix product. A slot
    holds whatever was written there last, by whomever; attention leaves out what is not listed as a key.

    `positions`, int32 [num_pages * page_size] on the host, has the position of the last write to each slot; windows
    depend on it. It follows the order of calls, not that of the device: batches are planned in order.

    The last page is extra: its `scratch_slot` is for rows that only fill up a batch.
    """

    def __init__(self, shape: KvShape, num_pages: int, device: torch.device) -> None:
        self.shape = shape
        self.num_pages = num_pages
        self.device = device
        self.positions: Array = np.zeros(num_pages * shape.page_size, np.int32)
        self._device_positions: Tensor | None = None
        layer = (num_pages + 1, 2 * shape.num_kv_heads, shape.page_size, shape.head_dim)
        self._pages = [lazy_zeros(layer, shape.dtype, device) for _ in range(shape.num_layers)]
        self._slots = [pages.transpose(1, 2) for pages in self._pages]
        self._pieces = [pages.view(-1, shape.page_size * shape.head_dim) for pages in self._pages]

    @property
    def scratch_slot(self) -> int:
        """A slot for rows that only fill up a batch. No sequence reads its keys."""
        return self.num_pages * self.shape.page_size

    def layer(self, layer: int) -> Tensor:
        """All pages of a layer, [num_pages + 1, 2 * num_kv_heads, page_size, head_dim]."""
        return self._pages[layer]

    def locate(self, slots: Array) -> Slots:
        """Checks slot numbers, and converts them to pages and offsets. Raises BatchError."""
        numbers = index_tensor(slots, self.num_pages * self.shape.page_size, "KV slot")
        pages = numbers.div(self.shape.page_size, rounding_mode="floor")
        offsets = numbers - pages * self.shape.page_size
        return Slots(slots, upload(pages, self.device), upload(offsets, self.device))

    def place(self, slots: Array, positions: Array) -> Slots:
        """Like `locate`; also records the positions, int32 [M], of the keys that will be written there."""
        located = self.locate(slots)
        self.note_positions(slots, positions)
        return located

    def note_positions(self, slots: Array, positions: Array) -> None:
        """Records the positions, int32 [M], of the keys that are or will be in `slots`. Nothing else changes
        `positions`."""
        self.positions[slots] = positions
        if self._device_positions is not None:
            where, values = (upload(tensor(numbers, np.int64), self.device) for numbers in (slots, positions))
            self._device_positions[where] = values.int()

    def device_positions(self) -> Tensor:
        """A copy of `positions` on the device, kept up to date from the first call on, in the order of the device's
        work."""
        if self._device_positions is None:
            self._device_positions = torch.from_numpy(self.positions).to(self.device, copy=True)
        return self._device_positions

    def write(self, layer: int, slots: Slots, key_value: Tensor) -> None:
        """Writes keys and values [M, 2 * num_kv_heads, head_dim] to slots."""
        self._slots[layer][slots.pages, slots.offsets] = key_value

    def read(self, layer: int, slots: Slots) -> Tensor:
        """Keys and values of slots, [M, 2 * num_kv_heads, head_dim], in new memory."""
        return self._slots[layer][slots.pages, slots.offsets]

    def piece_index(self, pages: Array) -> Tensor:
        """The index for `gather` to collect keys, then values, of pages [S, P], head by head."""
        heads = self.shape.num_kv_heads
        index_tensor(pages.reshape(-1), self.num_pages, "page")
        parts = np.arange(2 * heads).reshape(2, 1, heads, 1)
        pieces = pages.astype(np.int64)[None, :, None, :] * (2 * heads) + parts
        return upload(torch.from_numpy(pieces.reshape(-1)), self.device)

    def gather(self, layer: int, piece_index: Tensor) -> Tensor:
        """Keys and values of pages [S, P] as one tensor; viewed as [2, S * num_kv_heads, P * page_size, head_dim]."""
        return self._pieces[layer].index_select(0, piece_index)

    def copy(self, source: Array, target: Array) -> None:
        """Copies slots in all layers; all sources are read before targets are written. Raises BatchError.

        However many they are, it takes little memory, and takes it before it writes anything: a copy that fails has
        done nothing, even if targets are sources too.
        """
        self._check_copy(source, target)
        if not len(source):
            return
        heads = 2 * self.shape.num_kv_heads
        of_a_head = len(source) * self.shape.head_dim * self.shape.dtype.itemsize
        at_once = max(1, min(heads, STAGED_BYTES // of_a_head))
        whole, rest = split_copies(source, target, self.shape.page_size)
        moves = [self._move_pages(whole, at_once)] if len(whole.source) else []
        moves += [self._move_slots(rest, at_once)] if len(rest.source) else []
        for first in range(0, heads, at_once):
            count = min(at_once, heads - first)
            for pages in self._pages:
                for move in moves:
                    move.read(pages, count)
                for move in moves:
                    move.write(pages, count)
            for move in moves:
                move.go_on()
        self.note_positions(target, self.positions[source])

    def _move_pages(self, copies: Copies, at_once: int) -> Move:
        """Moves whole pages: each head's part of a page is a row."""
        shape, heads = self.shape, 2 * self.shape.num_kv_heads
        source, target = copies.source * heads, copies.target * heads
        return Move(source, target, 1, at_once, shape.page_size * shape.head_dim, shape.dtype, self.device)

    def _move_slots(self, copies: Copies, at_once: int) -> Move:
        """Moves slots: the vector of each head is a row."""
        shape = self.shape
        source, target = _first_rows(copies.source, shape), _first_rows(copies.target, shape)
        return Move(source, target, shape.page_size, at_once, shape.head_dim, shape.dtype, self.device)

    def distances(self, slots: Array, positions: Array) -> Array:
        """How far the keys in `slots` int32 [M] are from `positions` int32 [M]; int32 [M]. Raises BatchError."""
        if len(slots) != len(positions):
            raise BatchError(f"{len(slots)} slots cannot be moved to {len(positions)} positions")
        if positions.min(initial=0) < 0:
            raise BatchError(f"position {positions.min()} is negative")
        index_tensor(slots, self.num_pages * self.shape.page_size, "KV slot")
        far: Array = positions - self.positions[slots]
        return far

    def shift(self, slots: Array, positions: Array, rotations: Sequence[Rotation]) -> None:
        """Moves the keys in `slots` int32 [M] to `positions` int32 [M]; `rotations`, one of M rows for each layer, are
        those by the `distances`. Values stay.

        It takes its memory before it writes anything, so a shift that fails has done nothing.
        """
        shape, rows = self.shape, _first_rows(slots, self.shape)
        at_once = max(1, min(shape.num_kv_heads, STAGED_BYTES // (len(slots) * shape.head_dim * WORK_BYTES)))
        move = Move(rows, rows, shape.page_size, at_once, shape.head_dim, shape.dtype, self.device)
        turn = Turn(at_once, rotations[0])
        for first in range(0, shape.num_kv_heads, at_once):  # keys are before values
            count = min(at_once, shape.num_kv_heads - first)
            for pages, rotation in zip(self._pages, rotations, strict=True):
                move.read(pages, count)
                turn(move.staged(count), rotation)
                move.write(pages, count)
            move.go_on()
        self.note_positions(slots, positions)

    def _check_copy(self, source: Array, target: Array) -> None:
        if len(source) != len(target):
            raise BatchError(f"{len(source)} slots cannot be copied to {len(target)}")
        for slots in (source, target):
            index_tensor(slots, self.num_pages * self.shape.page_size, "KV slot")

    @property
    def page_positions(self) -> Array:
        """A view of `positions` as [num_pages, page_size]; only for reading."""
        return self.positions.reshape(self.num_pages, self.shape.page_size)

    def note_page_positions(self, pages: Array, positions: Array) -> None:
        """Like `note_positions`, for all slots of pages [P]; positions [P, page_size]."""
        slots = pages[:, None] * self.shape.page_size + np.arange(self.shape.page_size)
        self.note_positions(slots.reshape(-1), positions.reshape(-1))

    def read_pages(self, layer: int, pages: Tensor) -> Tensor:
        """Keys and values of pages int64 [P], [P, 2 * num_kv_heads, page_size, head_dim], in new memory."""
        return self._pages[layer].index_select(0, pages)

    def write_pages(self, layer: int, pages: Tensor, key_value: Tensor) -> None:
        """Writes keys and values, in the form that `read_pages` returns, to pages int64 [P]."""
        self._pages[layer].index_copy_(0, pages, key_value)


def _first_rows(slots: Array, shape: KvShape) -> Array:
    """The rows of a layer, counted in vectors, that have the first head of slots; int64."""
    pages, offsets = np.divmod(slots.astype(np.int64), shape.page_size)
    rows: Array = pages * (2 * shape.num_kv_heads * shape.page_size) + offsets
    return rows
