"""What a scheme of quantized checkpoints is: how its tensors become `QuantizedWeight`s."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...quantization.formats import QuantizedWeight, pack_int4
from ...quantization.names import Format, Kind

CONFIG = "config.json: quantization_config"
GROUPS = (32, 64, 128)
"""Input features that may share a scale, where not a whole row does."""
FLOATING = ("F32", "F16", "BF16")
WORDS = ("I32",)
"""Number formats of scales, and of packed integers, by their names in safetensors."""
UNUSED: Mapping[str, int] = dict.fromkeys(
    (".activation_scale", ".input_scale", ".input_zero_point", ".k_scale", ".v_scale"), 0
)
"""What the names of scales of activations, keys and values end with, as `Scheme.endings`. They say how these would be
rounded; here all of them stay in the model's number format."""


class Tensors(Protocol):
    """The tensors of a checkpoint."""

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises CheckpointError if the tensor is missing."""

    def read(self, name: str, shape: Sequence[int], formats: Collection[str]) -> Tensor:
        """A tensor as it is stored, in one of these number formats. Raises CheckpointError."""


@dataclass(frozen=True)
class StoredWeight:
    """The weight of a module, as the checkpoint has it."""

    weight: QuantizedWeight
    order: Tensor | None = None  # int64 [K]: column c of the weight is for input feature order[c]; None: c

    def rows(self, first: int, count: int) -> StoredWeight:
        """Rows `first` to `first + count`."""
        return replace(self, weight=self.weight.narrowed(0, first, count))

    def columns(self, first: int, count: int, module: str) -> StoredWeight:
        """Columns `first` to `first + count`, for one of several ranks. Raises CheckpointError if they are not whole
        groups, or not in the order of the input features."""
        if self.order is not None:
            raise CheckpointError(f"{module}: a weight with desc_act cannot be shared by ranks; serve it on one")
        if count % (self.weight.format.group or 1):
            raise CheckpointError(
                f"{module}: {count} input features on each rank are not whole groups of {self.weight.format.group}; "
                "serve it on fewer ranks"
            )
        return replace(self, weight=self.weight.narrowed(1, first, count))


class Scheme(Protocol):
    """One scheme, with the parameters of a config.json."""

    name: str
    """The name that `pie models` shows."""

    scales: Sequence[str]
    """What the names of scales end with. Each quantized module has all of them."""

    endings: Mapping[str, int]
    """What the names of tensors of quantized modules end with, and for each how many weights one of its numbers holds;
    0: it is no weight."""

    def holds(self, tensors: Tensors, module: str) -> bool:
        """Whether the module has a quantized weight: a tensor that one of another form has not."""
        endings = {*self.scales, *(ending for ending, weights in self.endings.items() if weights)} - {".weight"}
        return any(f"{module}{ending}" in tensors for ending in endings)

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        """The weight [rows, columns] of a module. Raises CheckpointError."""


class Settings:
    """The numbers of a quantization_config. Each method raises CheckpointError, with the key, for what it refuses."""

    def __init__(self, values: Mapping[str, Any], where: str = CONFIG) -> None:
        self._values = values
        self._where = where

    def one_of(self, key: str, allowed: Sequence[Any], default: Any = None) -> Any:
        """A value that must be among some."""
        value = self._values.get(key, default)
        if not any(type(value) is type(one) and value == one for one in allowed):
            known = ", ".join(map(repr, allowed))
            raise CheckpointError(f"{self._where}.{key}: {value!r} is not supported, only {known}; {TAKE_THE_ORIGINAL}")
        return value

    def refuse(self, key: str, why: str) -> None:
        """Refuses a key that has a value other than null, false, 0, or nothing."""
        if self._values.get(key):
            raise CheckpointError(f"{self._where}.{key}: {why}; {TAKE_THE_ORIGINAL}")

    def mapping(self, key: str) -> Settings:
        """An object below."""
        value = self._values.get(key)
        if not isinstance(value, dict):
            raise CheckpointError(f"{self._where}.{key}: expected an object, not {value!r}")
        return Settings(value, f"{self._where}.{key}")

    def get(self, key: str) -> Any:
        """A value as it is; None if it is missing."""
        return self._values.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)


TAKE_THE_ORIGINAL = "take the original checkpoint, and quantize it with --quantization while it is loaded"


def make_format(scheme: str, kind: Kind, group: int | None, columns: int, module: str) -> Format:
    """The format of a weight with `columns` input features. Raises CheckpointError if groups do not divide these."""
    if group is not None and columns % group:
        raise CheckpointError(f"{module}: its {columns} input features are not a multiple of groups of {group}")
    return Format(f"{scheme} {kind}" if group is None else f"{scheme} {kind}-{group}", kind, group)


def scale_of_all(tensors: Tensors, name: str, rows: int) -> Tensor:
    """The scale `name` of a whole weight, for each of its rows: [rows, 1]. Raises CheckpointError if it is several."""
    whole = tensors.read(name, tensors.shape(name), FLOATING)
    if whole.numel() != 1:
        raise CheckpointError(f"tensor {name!r} has shape {list(whole.shape)}, expected one number")
    return whole.view(1, 1).repeat(rows, 1)


def unpack(words: Tensor, bits: int, dim: int) -> Tensor:
    """Integers of 4 or 8 bits, uint8, of int32 words, each the lowest bits first, side by side along `dim`."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    along_last = words.movedim(dim, -1)
    values = (along_last.unsqueeze(-1) >> shifts) & (2**bits - 1)
    unpacked: Tensor = values.to(torch.uint8).flatten(-2).movedim(-1, dim)
    return unpacked


def stored_zeros(zeros: Tensor, bits: int) -> Tensor:
    """Unsigned integers [N, G], which are taken from those of weights, as `QuantizedWeight.zeros`."""
    return (zeros.to(torch.int16) - (0 if bits == 4 else 128)).to(torch.int8).contiguous()


def stored_integers(values: Tensor, bits: int) -> Tensor:
    """Unsigned integers [N, K] as `QuantizedWeight.values`: packed for 4 bits, less 128 for 8."""
    return pack_int4(values.contiguous()) if bits == 4 else (values.to(torch.int16) - 128).to(torch.int8)
