"""The folder of an adapter, as PEFT saves it: adapter_config.json and adapter_model.safetensors.

Nothing of it is executed. A file that is larger than what there is room for is not read. Names, shapes and number
formats are checked against the model before a number is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ..errors import AdapterError
from .folder import AdapterFolder
from .peft_config import CONFIG_FILE, PeftConfig, read_peft_config

FILE = "adapter_model.safetensors"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MOST_HEADER = 16 << 20
"""Bytes: the names, shapes and places of about 100,000 tensors."""
LONGEST_REASON = 300
"""Most characters of what safetensors says, which may quote the file."""

ROOTS = ("model.text_model", "model.language_model", "language_model.model", "model")
"""Beginnings of the names of a text model's modules, in models with and without images."""
OF_MODEL = "model."
TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.(?!weight$)[^.]+)?\.weight")

ROOM = "drop other adapters, or start the server with a larger --adapter-mb"

Weights = dict[str, tuple[Tensor, Tensor]]
"""A [rank, in_features] and B [out_features, rank] by module, float32, with the scale in B."""


@dataclass(frozen=True)
class ModuleShape:
    """Sizes of a linear layer of the checkpoint."""

    ins: int
    outs: int


def common_name(name: str) -> str:
    """The name of a module of a text model, whatever that is called with: model.layers.0.mlp.up_proj."""
    root = next((root for root in ROOTS if name.startswith(f"{root}.")), None)
    return name if root is None else f"model{name.removeprefix(root)}"


def read_adapter(folder: AdapterFolder, modules: Mapping[str, ModuleShape], most_numbers: int) -> Weights:
    """The weights of an adapter for the modules with these names (`common_name`); at most `most_numbers` numbers.
    Raises AdapterError, which says what is wrong with the files."""
    config = read_peft_config(folder)
    data = folder.read(FILE, most_numbers * torch.float64.itemsize + MOST_HEADER, _other_format(folder))
    return _Reader(config, _tensors_of(data), modules).read(most_numbers)


def _tensors_of(data: bytes) -> dict[str, Tensor]:
    try:
        return load(data)
    except SafetensorError as error:
        reason = f"it is cut off, or no safetensors: {str(error)[:LONGEST_REASON]}"
    except KeyError as error:
        reason = f"it has numbers in the format {error}, which cannot be read"
    raise AdapterError(f"{FILE}: unreadable: {reason}")


def _other_format(folder: AdapterFolder) -> str:
    if folder.has("adapter_model.bin"):
        return (
            ", only adapter_model.bin, which can run code when it is read: load the adapter with PEFT and save it with "
            "save_pretrained(PATH, safe_serialization=True)"
        )
    return ""


class _Reader:
    """Finds the weights among the tensors of one file."""

    def __init__(self, config: PeftConfig, tensors: Mapping[str, Tensor], modules: Mapping[str, ModuleShape]) -> None:
        self._config = config
        self._tensors = tensors
        self._modules = modules

    def read(self, most_numbers: int) -> Weights:
        parts, root = self._places()
        spelled = {_spelled(name, root): name for name in self._modules}  # as PEFT has seen them
        targets = self._config.target_names(list(spelled))
        self._compare({spelled[name] for name in targets}, parts)
        numbers = {spelled[name]: each for name, each in self._config.ranks_and_scales(sorted(targets)).items()}
        for module, (rank, _) in numbers.items():
            self._check_shapes(module, rank, parts[module])
        count = sum(rank * sum(self._shape_of(module)) for module, (rank, _) in numbers.items())
        if count > most_numbers:
            raise AdapterError(
                f"{FILE}: {count} numbers are more than the {most_numbers} for which there is room: {ROOM}"
            )
        return {module: self._weights(parts[module], scale) for module, (_, scale) in numbers.items()}

    def _places(self) -> tuple[dict[str, dict[str, str]], str]:
        """The tensors of each module, by part; and what stands for `model` in its names. Raises AdapterError."""
        parts: dict[str, dict[str, str]] = {}
        root = "model"
        for tensor in self._tensors:
            found = TENSOR.fullmatch(tensor)
            module = common_name(found["module"]) if found else ""
            if found is None or module not in self._modules:
                raise AdapterError(
                    f"{FILE}: tensor {tensor[:200]!r} belongs to no linear layer that takes adapters: those "
                    f"of attention and feed-forward do, such as {next(iter(self._modules), 'none')}; its base "
                    f"model is {self._config.base[:200]!r}"
                )
            of_module = parts.setdefault(module, {})
            if found["part"] in of_module:
                raise AdapterError(f"{FILE}: {module} has two tensors lora_{found['part']}")
            of_module[found["part"]] = tensor
            if module.startswith(OF_MODEL):
                root = found["module"].removesuffix(module.removeprefix("model"))
        return parts, root

    def _compare(self, targets: set[str], parts: Mapping[str, Mapping[str, str]]) -> None:
        """Whether the tensors are those that the configuration names. Raises AdapterError."""
        if not targets:
            raise AdapterError(f"{CONFIG_FILE}: target_modules matches no layer of the model that takes adapters")
        for module in sorted(targets | parts.keys()):
            missing = next((part for part in "AB" if part not in parts.get(module, {})), None)
            if missing:
                raise AdapterError(f"{FILE}: the tensor lora_{missing} of {module} is missing")
            if module not in targets:
                raise AdapterError(f"{FILE}: there are tensors of {module}, which target_modules does not name")

    def _shape_of(self, module: str) -> tuple[int, int]:
        return self._modules[module].ins, self._modules[module].outs

    def _check_shapes(self, module: str, rank: int, parts: Mapping[str, str]) -> None:
        ins, outs = self._shape_of(module)
        for part, expected in (("A", [rank, ins]), ("B", [outs, rank])):
            tensor = self._tensors[parts[part]]
            shape = list(tensor.shape)
            if shape != expected:
                raise AdapterError(
                    f"{FILE}: tensor {parts[part]!r} has shape {shape}, expected {expected}: the adapter's base "
                    f"model {self._config.base[:200]!r} is not of this shape, or its rank is not {rank}"
                )
            if tensor.dtype not in DTYPES:
                raise AdapterError(
                    f"{FILE}: tensor {parts[part]!r} is stored as {_name(tensor.dtype)}, expected "
                    f"{', '.join(map(_name, DTYPES))}"
                )

    def _weights(self, parts: Mapping[str, str], scale: float) -> tuple[Tensor, Tensor]:
        down, up = (self._tensors[parts[part]].to(torch.float32) for part in "AB")
        for part, weight in (("A", down), ("B", up)):
            if not bool(weight.isfinite().all()):
                raise AdapterError(f"{FILE}: tensor {parts[part]!r} has numbers that are not finite")
        return down, up * scale


def _spelled(name: str, root: str) -> str:
    return root + name.removeprefix("model") if name.startswith(OF_MODEL) else name


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
