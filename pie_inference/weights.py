"""Hands the tensors of a checkpoint to the layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .ops.interface import Linear, Ops
from .ranks import Ranks, share

Split = Literal["outputs", "inputs"]


@dataclass(frozen=True)
class Block:
    """Rows of a linear layer of the checkpoint, `NAME.weight` and perhaps `NAME.bias`.

    A layer that stores several side by side is named once for each: rows `first` to `first + rows` of `total`.
    """

    name: str
    rows: int
    first: int = 0
    total: int | None = None


class WeightLoader:
    """Hands a checkpoint's tensors to layers, on the device and in the dtype in which they serve, with the operations
    to use them. Of what is split over ranks, only this rank's share."""

    def __init__(
        self, checkpoint: Checkpoint, ops: Ops, dtype: torch.dtype, device: torch.device, ranks: Ranks
    ) -> None:
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self.ranks = ranks
        self.bytes_loaded = 0
        self._checkpoint = checkpoint

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor, whole, in the model's dtype unless another is named. Raises CheckpointError."""
        tensor = self._checkpoint.read(name, shape).to(self.device, dtype or self.dtype)
        self.bytes_loaded += tensor.nbytes
        return tensor

    def linear(self, blocks: Sequence[Block], ins: int, *, bias: bool = False, split: Split | None = None) -> Linear:
        """The layer of `blocks` with `ins` input features, their outputs side by side: one large product beats several.

        split "outputs": each rank has its share of every block's rows. "inputs": its share of the columns, and the
        ranks' results are added. Raises CheckpointError.
        """
        parts = [self._weight(block, ins, split) for block in blocks]
        own_bias = bias and not (split == "inputs" and self.ranks.rank)
        multiply = self.ops.linear(parts, torch.cat([self._bias(b, split) for b in blocks]) if own_bias else None)
        self.bytes_loaded += sum(part.numel() for part in parts) * self.dtype.itemsize
        if split != "inputs" or self.ranks.size == 1:
            return multiply
        return lambda rows: self.ranks.sum_(multiply(rows))

    def _weight(self, block: Block, ins: int, split: Split | None) -> Tensor:
        """As it is stored, memory-mapped."""
        whole = self._checkpoint.read(f"{block.name}.weight", (block.total or block.rows, ins))
        rows = whole.narrow(0, block.first, block.rows)
        return rows if split is None else self._share(rows, 0 if split == "outputs" else 1, block.name)

    def _bias(self, block: Block, split: Split | None) -> Tensor:
        whole = self._checkpoint.read(f"{block.name}.bias", (block.total or block.rows,))
        rows = whole.narrow(0, block.first, block.rows).to(self.device, self.dtype)
        return self._share(rows, 0, block.name) if split == "outputs" else rows

    def _share(self, tensor: Tensor, dim: int, name: str) -> Tensor:
        count = share(self.ranks, tensor.shape[dim], f"features of {name}")
        return tensor.narrow(dim, self.ranks.rank * count, count)
