"""Gives the tensors of a checkpoint to the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from ..adapters.adapters import AdaptedLayers
from ..adapters.lora import AdaptedLinear, Module
from ..device.ranks import Ranks, share
from ..ops.interface import Linear, Ops
from ..quantization.choose import Quantizer
from ..recurrence.interface import Recurrences
from ..recurrence.states import States
from ..recurrence.torch_recurrences import TorchRecurrences
from .progress import LoadProgress
from .quantized.layers import QuantizedTensors, side_by_side, stored_linear
from .quantized.scheme import StoredWeight
from .weight_sizes import refuse_groups


class TensorReader(Protocol):
    """Gives tensors by their names."""

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""

    def read(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor as it is stored. Raises CheckpointError if it is missing or has another shape."""


class TensorSource(TensorReader, Protocol):
    """A checkpoint, as far as its tensors go."""

    def names(self) -> Iterable[str]:
        """The names of all tensors."""

    def shape(self, name: str) -> Sequence[int]:
        """The shape of a tensor, without reading it. Raises CheckpointError."""

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raises CheckpointError as `read` does, without reading."""

    def differ(self, one: str, other: str) -> bool:
        """Whether two tensors have different numbers. Raises CheckpointError if one is missing."""


class RenamedTensors(TensorReader, Protocol):
    """A checkpoint by other names."""

    @property
    def quantized(self) -> Mapping[str, str]:
        """The modules whose weights are quantized in the checkpoint, to their names there."""


Renamed = TypeVar("Renamed", bound=RenamedTensors)
Read = TypeVar("Read")

Split = Literal["outputs", "inputs"]
Role = Literal["layer", "head", "router"]


@dataclass(frozen=True)
class Block:
    """Rows of a linear layer of the checkpoint, `NAME.weight` and perhaps `NAME.bias`.

    A tensor that stores several layers is named once for each: rows `first` to `first + rows` of `total`. One of three
    dimensions, NAME [stacked, total / stacked, in_features], has the rows of `stacked` layers.
    """

    name: str
    rows: int
    first: int = 0
    total: int | None = None
    stacked: int | None = None


class WeightLoader:
    """Gives a checkpoint's tensors to layers, on the device and in the dtype in which they serve, with the operations
    that use them. Of tensors that are split over ranks it gives this rank's share."""

    def __init__(
        self,
        checkpoint: TensorSource,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks,
        quantizer: Quantizer | None = None,
        progress: LoadProgress | None = None,
        recurrences: Recurrences | None = None,
        stored: QuantizedTensors | None = None,
    ) -> None:
        """`stored`: the weights that are quantized in the checkpoint already."""
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self.ranks = ranks
        self.bytes_loaded = 0
        self.adapted = AdaptedLayers()
        self.states = States(recurrences or TorchRecurrences(), dtype, device)
        self._source = checkpoint
        self._as_stored = stored
        self._checkpoint: TensorReader = checkpoint
        self._quantizer = quantizer
        self._progress = progress
        self._resident: dict[str, Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint or (self._as_stored is not None and self._as_stored.holds(name))

    def read_through(self, rename: Callable[[TensorSource, QuantizedTensors | None], Renamed]) -> Renamed:
        """From now on reads what `rename` makes of the checkpoint and of the weights that are quantized in it."""
        renamed = rename(self._source, self._as_stored)
        self._checkpoint = renamed
        if self._as_stored is not None:
            self._as_stored = replace(self._as_stored, names=renamed.quantized)
        return renamed

    def differ(self, one: str, other: str) -> bool:
        """Whether two tensors of the checkpoint have different numbers. Raises CheckpointError if one is missing."""
        return self._source.differ(one, other)

    @property
    def quantized(self) -> bool:
        """Whether linear layers are quantized, except those that must not be."""
        return self._quantizer is not None or self._as_stored is not None

    def tensor(
        self,
        name: str,
        *shape: int,
        dtype: torch.dtype | None = None,
        own_share: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """One tensor of this shape, in the model's dtype unless `dtype` names another. It is whole, unless `own_share`
        cuts it before it is on the device. Raises CheckpointError."""
        stored = self._checkpoint.read(name, shape)
        if own_share is not None:
            stored = own_share(stored)
        tensor = stored.to(self.device, dtype or self.dtype)
        if tensor.dtype == self.dtype and own_share is None:
            self._resident[name] = tensor
        self._count(stored, tensor.nbytes)
        return tensor

    def linear(
        self,
        blocks: Sequence[Block],
        ins: int,
        *,
        bias: bool = False,
        split: Split | None = None,
        role: Role = "layer",
        add_up: bool = True,
        adaptable: bool = True,
    ) -> Linear:
        """One layer made of `blocks` with `ins` input features, with their outputs side by side: one large product is
        faster than several.

        split "outputs": each rank has its share of the rows of every block. split "inputs": each rank has its share of
        the columns, and the ranks' results are added, unless `add_up` is False because the caller adds them. A
        quantized model has the layers in its format, the output head in `HEAD_FORMAT`, and routers as they are. All but
        the head take adapters if they are `adaptable`; their rows must be those of a forward batch. Raises
        CheckpointError.
        """
        own_bias = bias and not (split == "inputs" and self.ranks.rank)
        whole_bias = torch.cat([self._bias(block, split) for block in blocks]) if own_bias else None
        multiply = self._multiply(blocks, ins, split, whole_bias, role)
        if adaptable and role != "head":
            multiply = self._adapted(multiply, blocks, ins, split)
        if split != "inputs" or self.ranks.size == 1 or not add_up:
            return multiply
        return lambda rows: self.ranks.all_reduce(multiply(rows))

    def _multiply(
        self, blocks: Sequence[Block], ins: int, split: Split | None, bias: Tensor | None, role: Role
    ) -> Linear:
        held = [self._is_stored_quantized(block) for block in blocks]
        if self._as_stored is None or not any(held):
            return self._make(blocks[0].name, self._weights(blocks, ins, split), bias, role)
        if not all(held):
            return side_by_side([self._multiply([block], ins, split, None, role) for block in blocks], bias)
        whole = read_once(blocks, partial(self._stored_quantized, ins))
        stored = [self._share_quantized(whole[block.name], block, ins, split) for block in blocks]
        return stored_linear(stored, bias, self.device, self._as_stored.library)

    def _is_stored_quantized(self, block: Block) -> bool:
        return self._as_stored is not None and self._as_stored.holds(block.name)

    def _stored_quantized(self, ins: int, block: Block) -> StoredWeight:
        assert self._as_stored is not None
        return self._as_stored.read(block.name, block.total or block.rows, ins)

    def _share_quantized(self, stored: StoredWeight, block: Block, ins: int, split: Split | None) -> StoredWeight:
        """The rows of a block, and of these this rank's share, of a weight that is quantized in the checkpoint."""
        stored = stored.rows(block.first, block.rows)
        if split is not None and self.ranks.size > 1:
            whole = block.rows if split == "outputs" else ins
            count = share(self.ranks, whole, f"features of {block.name}")
            first = self.ranks.rank * count
            stored = stored.rows(first, count) if split == "outputs" else stored.columns(first, count, block.name)
        self._count(stored.weight.values, stored.weight.nbytes)
        return stored

    def _adapted(self, base: Linear, blocks: Sequence[Block], ins: int, split: Split | None) -> Linear:
        size, rank = self.ranks.size, self.ranks.rank
        modules, column = [], 0
        for block in blocks:
            count = block.rows // size if split == "outputs" else block.rows
            first = block.first + (rank * count if split == "outputs" else 0)
            modules.append(Module(block.name, block.total or block.rows, first, first + count, column))
            column += count
        own_ins = slice(rank * ins // size, (rank + 1) * ins // size) if split == "inputs" else slice(0, ins)
        layer = AdaptedLinear(base, modules, ins, own_ins, self.adapted.running)
        self.adapted.all.append(layer)
        return layer

    def stacked(self, layers: Sequence[Sequence[Block]], ins: int, split: Split | None) -> Tensor:
        """The weights of several layers, each as in `linear` without bias, as one tensor [layers, out_features,
        in_features] for products over all of them. They are never quantized. With split "inputs", the caller adds the
        ranks' results. Raises CheckpointError."""
        return torch.stack([self._stored(blocks, ins, split) for blocks in layers])

    def _stored(self, blocks: Sequence[Block], ins: int, split: Split | None) -> Tensor:
        parts = [part.to(self.device, self.dtype) for part in self._weights(blocks, ins, split)]
        for part in parts:
            self._count(part, part.nbytes)
        return torch.cat(parts)

    def _make(self, name: str, parts: Sequence[Tensor], bias: Tensor | None, role: Role) -> Linear:
        rows, columns = sum(len(part) for part in parts), parts[0].shape[1]
        quantizer = self._quantizer_for(role)
        if quantizer is None:
            made, nbytes = self.ops.linear(parts, bias), rows * columns * self.dtype.itemsize
        else:
            format = quantizer.format
            refuse_groups(format.name, name, columns)
            made, nbytes = quantizer.linear(parts, bias), format.nbytes(rows, columns, self.dtype.itemsize)
        for part in parts:
            self._count(part, 0)
        self.bytes_loaded += nbytes
        return made

    def _quantizer_for(self, role: Role) -> Quantizer | None:
        if self._quantizer is None or role == "router":
            return None
        return self._quantizer.for_head() if role == "head" else self._quantizer

    def _count(self, stored: Tensor, nbytes: int) -> None:
        self.bytes_loaded += nbytes
        if self._progress is not None:
            self._progress.advance(stored.nbytes)

    def _weights(self, blocks: Sequence[Block], ins: int, split: Split | None) -> list[Tensor]:
        """The rows of each block, and of these this rank's share."""
        whole = read_once(blocks, partial(self._whole, ins))
        rows = [whole[block.name].narrow(0, block.first, block.rows) for block in blocks]
        if split is None:
            return rows
        dim = 0 if split == "outputs" else 1
        return [self._share(part, dim, block.name) for part, block in zip(rows, blocks, strict=True)]

    def _whole(self, ins: int, block: Block) -> Tensor:
        """The weight as it is stored, memory-mapped; or the embedding table in use, if it is also the output head."""
        total, name = block.total or block.rows, f"{block.name}.weight"
        if block.stacked is not None:
            return self._checkpoint.read(block.name, (block.stacked, total // block.stacked, ins)).flatten(0, 1)
        resident = self._resident.get(name)
        return self._checkpoint.read(name, (total, ins)) if resident is None else resident

    def _bias(self, block: Block, split: Split | None) -> Tensor:
        whole = self._checkpoint.read(f"{block.name}.bias", (block.total or block.rows,))
        rows = whole.narrow(0, block.first, block.rows).to(self.device, self.dtype)
        return self._share(rows, 0, block.name) if split == "outputs" else rows

    def _share(self, tensor: Tensor, dim: int, name: str) -> Tensor:
        count = share(self.ranks, tensor.shape[dim], f"features of {name}")
        return tensor.narrow(dim, self.ranks.rank * count, count)


def read_once(blocks: Sequence[Block], read: Callable[[Block], Read]) -> dict[str, Read]:
    """What `read` gives for each tensor of which these are rows, by its name: to unpack one takes long."""
    return {name: read(block) for name, block in {block.name: block for block in blocks}.items()}
