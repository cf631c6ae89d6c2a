"""The folder of a Hugging Face checkpoint: config.json and memory-mapped safetensors, in one file or in shards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError
from ..json_files import read_json
from .quantized.bitsandbytes import find_packed
from .quantized.scheme import Scheme

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
"""The names of files with parts of the weights."""
LFS_POINTER = b"version https://git-lfs"
"""With it begins what stands in a file's place where Git LFS has not fetched it."""

BARE, HEAD = "embed_tokens.weight", "lm_head.weight"
"""A tensor that shows a checkpoint without a head: with one, its name begins with `model.`."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
"""Number formats of weights, by their names in safetensors, with the bytes of one number."""
FLOATING = tuple(BYTES)
INTEGER_BYTES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "F8_E8M0": 1}
"""Those of tensors of quantized weights, which schemes read."""
SPARE = 16
"""A quantized weight takes up to one byte in so many more than its file, for scales that are spread over rows."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, as the header of its file describes it."""

    name: str
    path: Path
    shape: tuple[int, ...]
    format: str  # its name in safetensors: BF16, F32, ...
    per_number: int | None = None  # weights in a number, 0 for scales; None: it is not of a quantized module

    @property
    def parameters(self) -> int:
        """The count of weights in it."""
        return self.numel if self.per_number is None else self.numel * self.per_number

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * (BYTES | INTEGER_BYTES).get(self.format, 0)


class Checkpoint:
    """The tensors of a model folder by name. It reads all headers at once, so that a missing or truncated file is found
    at the start; it reads numbers only on request.

    Models that were made for embeddings, such as Qwen3-Embedding, are stored without their head: the names of their
    tensors lack `model.` in front. Here they have it. Weights that bitsandbytes has
    quantized are those that they stand for.
    """

    def __init__(self, folder: Path, scheme: Scheme | None = None, left_out: Sequence[str] = ()) -> None:
        """`scheme`: how its weights are quantized, if they are. `left_out`: parts of the names of tensors that the
        model leaves alone; they count nowhere."""
        self.folder = folder
        self.scheme = scheme
        self._left_out = left_out
        self._files: dict[Path, Any] = {}
        self._stored = self._locate()
        prefix = "model." if BARE in self._stored else ""
        self.has_head = not prefix or HEAD in self._stored
        self._prefix = len(prefix)
        packed, beside = find_packed(self._stored)
        self._packed = {prefix + name: one for name, one in packed.items()}
        self._where = {prefix + name: path for name, path in self._stored.items() if name not in beside}
        for path in self.files:
            self._open(path)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with the tensors, each once."""
        return tuple(dict.fromkeys(self._where.values()))

    @property
    def quantized(self) -> str:
        """How its weights are quantized; "": they are not."""
        if self.scheme is not None:
            return self.scheme.name
        return "bitsandbytes, read as the numbers that they stand for" if self._packed else ""

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def tensors(self) -> Iterator[StoredTensor]:
        """All tensors of the model, from the headers alone."""
        return (self.find(name) for name in self._where if not any(part in name for part in self._left_out))

    def find(self, name: str) -> StoredTensor:
        """One tensor, from its file's header. Raises CheckpointError if it is missing."""
        if name not in self._where:
            raise CheckpointError(f"{self.folder}: {missing(name, self._where)}")
        path = self._where[name]
        if name in self._packed:
            return StoredTensor(name, path, *self._packed[name].describe(self._read_stored))
        try:
            entry = self._open(path).get_slice(name[self._prefix :])
        except SafetensorError as error:
            raise CheckpointError(f"{path}: tensor {name!r} is missing, though {INDEX_FILE} names it") from error
        return StoredTensor(name, path, tuple(entry.get_shape()), entry.get_dtype(), self._per_number(name))

    def _read_stored(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._open(self._stored[name]).get_tensor(name)
        except (KeyError, SafetensorError):
            raise CheckpointError(f"{self.folder}: tensor {name!r} is missing") from None
        return tensor

    def _per_number(self, name: str) -> int | None:
        if self.scheme is None:
            return None
        module, _, last = name.rpartition(".")
        if last == "weight":
            return self.scheme.endings.get(".weight", 1) if self.scheme.holds(self, module) else None
        return next((count for ending, count in self.scheme.endings.items() if name.endswith(ending)), None)

    def read(self, name: str, shape: Sequence[int], formats: Collection[str] = FLOATING) -> Tensor:
        """A tensor as it is stored, memory-mapped, or the numbers that one of bitsandbytes stands for. Raises
        CheckpointError if it is missing, has another shape, or does not hold numbers of one of the formats."""
        self.check(name, shape, formats)
        if name in self._packed:
            return self._packed[name].read(self._read_stored)
        return self._read_stored(name[self._prefix :])

    def check(self, name: str, shape: Sequence[int], formats: Collection[str] = FLOATING) -> None:
        """Raises CheckpointError as `read` does, without reading."""
        stored = self.find(name)
        if stored.shape != tuple(shape):
            raise CheckpointError(
                f"{stored.path}: tensor {name!r} has shape {list(stored.shape)}, expected {list(shape)}"
            )
        if stored.format not in formats:
            raise CheckpointError(
                f"{stored.path}: tensor {name!r} is stored as {stored.format}, expected {', '.join(formats)}"
            )

    def differ(self, one: str, other: str) -> bool:
        """Whether two tensors have different numbers, shapes or formats. Raises CheckpointError if one is missing."""
        first, second = self.find(one), self.find(other)
        if (first.shape, first.format) != (second.shape, second.format):
            return True
        return not torch.equal(*(self.read(name, first.shape, (first.format,)) for name in (one, other)))

    def names(self) -> Iterable[str]:
        """The names of all tensors."""
        return self._where

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises CheckpointError if it is missing."""
        return self.find(name).shape

    def num_parameters(self) -> int:
        """The count of weights in all tensors of the model together."""
        return sum(stored.parameters for stored in self.tensors())

    def num_bytes(self) -> int:
        """Bytes of all tensors of the model together, as they are read."""
        return sum(stored.nbytes for stored in self.tensors())

    @property
    def file_bytes(self) -> int:
        """Bytes of all tensors of the model together, as they are stored; of weights that are read as what they stand
        for, those of the files."""
        return sum(path.stat().st_size for path in self.files) if self._packed else self.num_bytes()

    def _locate(self) -> Mapping[str, Path]:
        """The file of each tensor, by the name under which it is stored."""
        index = self.folder / INDEX_FILE
        if (self.folder / SINGLE_FILE).exists() or not index.exists():
            path = self.folder / SINGLE_FILE
            if not path.exists():
                others = sorted(file.name for file in self.folder.glob("*.safetensors"))
                told = f"{SINGLE_FILE}: the weights are missing"
                if others:
                    told = f"{SINGLE_FILE}, only {others[0]}: if that has all weights, give it this name"
                if any(self.folder.glob(SHARDS)):
                    told = f"{INDEX_FILE}, which names the shard of each tensor: get it from where the shards are from"
                raise CheckpointError(f"{self.folder}: there is no {told}")
            return dict.fromkeys(self._open(path).keys(), path)
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: 'weight_map' is missing")
        return {name: self._file(index, name, file) for name, file in weight_map.items()}

    def _file(self, index: Path, tensor: str, file: object) -> Path:
        """The path of a file beside the index. The index must not name files outside of its folder."""
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{index}: tensor {tensor!r} points to {file!r}, which is not a file of this folder")
        return self.folder / file

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except FileNotFoundError as error:
                raise CheckpointError(f"{path}: unreadable: {INDEX_FILE} names it, and it is not there") from error
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: unreadable: {error}; {advice(path)}") from error
        return self._files[path]


def missing(name: str, names: Iterable[str]) -> str:
    """Says that a tensor is missing, and by which longer one of `names` it is there."""
    near = next((each for each in names if each.endswith(f".{name}")), None)
    if near is None:
        return f"tensor {name!r} is missing"
    return f"tensor {name!r} is missing, and {near!r} is there: save it without {near.removesuffix(name)!r} in front"


def advice(path: Path) -> str:
    """What to do about a file that is not what its name says."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return "let this user read it"
    return "it is a pointer of Git LFS: `git lfs pull` gets the file" if is_pointer else "copy or download it again"
