"""The tensors of a checkpoint for a module of transformers: by its table of names, one at a time, never twice in
memory. Linear layers become ours, so that quantization, adapters and kernels work as in a family of ours."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from ...errors import CheckpointError
from ...loading.weights import Block, Role, TensorSource, WeightLoader
from ...ops.interface import Linear
from .code import first_line

Sources = list[tuple[str, str]]
"""Tensors of the checkpoint, each with the pattern of the converter that takes it."""

ROUTERS = (".gate", ".router", "_gate")
"""Endings of linear layers that choose experts: they are never quantized."""


class Renamed:
    """A checkpoint by the names that the module has: implements `TensorReader`."""

    def __init__(self, model: Any, stored: TensorSource) -> None:
        """Raises CheckpointError if a tensor is missing, or has another shape than the module says."""
        self._model, self._stored = model, stored
        self._renamed: dict[str, str] = {}
        self._converted: dict[str, tuple[str, Sources]] = {}  # by any of the results: the first one, and its sources
        self._made: dict[str, Tensor] = {}
        table = get_model_conversion_mapping(model)
        self._converters = {p: one for one in table if isinstance(one, WeightConverter) for p in one.source_patterns}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._assign(table)
        self._check(getattr(model, "all_tied_weights_keys", {}))

    def __contains__(self, name: str) -> bool:
        return name in self._renamed or name in self._converted

    def read(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor as it is stored, or as it is made of those that are. Raises CheckpointError."""
        if name in self._renamed:
            return self._stored.read(self._renamed[name], shape)
        if name not in self._converted:
            raise CheckpointError(f"tensor {name!r} is missing")
        if name not in self._made:
            self._made.update(self._convert(*self._converted[name]))
        if name not in self._made or tuple(self._made[name].shape) != tuple(shape):
            found = list(self._made[name].shape) if name in self._made else "missing"
            raise CheckpointError(f"tensor {name!r} has shape {found}, expected {list(shape)}")
        return self._made.pop(name)

    def _assign(self, table: Sequence[Any]) -> None:
        """Finds the place of each tensor of the checkpoint; those that the module does not have are left alone."""
        renamings = [one for one in table if isinstance(one, WeightRenaming)]
        converters = [one for one in table if isinstance(one, WeightConverter)]
        prefix, known = self._model.base_model_prefix, self._model.state_dict()
        taken: dict[str, Sources] = defaultdict(list)
        for source in sorted(self._stored.names(), key=dot_natural_key):
            name = _of_text(source)
            target, pattern = rename_source_key(name, renamings, converters, prefix, known)
            if target not in known and name in known:
                target, pattern = rename_source_key(name, [], [], prefix, known)
            if target not in known:
                continue
            if pattern is None:
                self._renamed[target] = source
            else:
                taken[target].append((source, pattern))
        for target, sources in taken.items():
            results = self._converters[sources[0][1]].target_patterns
            for result in (target.replace(results[0], each) for each in results):
                self._converted[result] = (target, sources)

    def _check(self, tied: Mapping[str, str]) -> None:
        for name, shape in self._shapes.items():
            if name in self._renamed:
                self._stored.check(self._renamed[name], shape)
            elif name not in self._converted and name not in tied:
                raise CheckpointError(f"tensor {name!r} is missing")

    def _convert(self, target: str, sources: Sources) -> dict[str, Tensor]:
        converter = copy.deepcopy(self._converters[sources[0][1]])
        for source, pattern in sources:
            read: Any = partial(self._stored.read, source, self._stored.shape(source))
            converter.add_tensor(target, source, pattern, read)
        try:
            made = converter.convert(target, model=self._model, config=self._model.config)
        except Exception as error:
            raise CheckpointError(f"tensors of {target!r} do not fit each other: {first_line(error)}") from None
        return {name: each[0] if isinstance(each, list) else each for name, each in made.items()}


def _of_text(name: str) -> str:
    """The name that a tensor of the text model of a model that sees has in the text model alone."""
    for prefix, own in (("language_model.", ""), ("model.language_model.", "model.")):
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name


class OwnLinear(nn.Module):
    """Stands for an nn.Linear."""

    def __init__(self, linear: nn.Linear, multiply: Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._dtype, self._multiply = linear.weight.dtype, multiply

    @property
    def weight(self) -> Tensor:
        """Tells code that asks the shape and the number format; it has no numbers."""
        return torch.empty(self.out_features, self.in_features, dtype=self._dtype, device="meta")

    def forward(self, rows: Tensor) -> Tensor:
        return self._multiply(rows.reshape(-1, self.in_features)).view(*rows.shape[:-1], self.out_features)


def fill(model: Any, weights: WeightLoader, irregular: Sequence[str]) -> None:
    """Gives a module that is on `meta` its weights. Raises CheckpointError."""
    weights.read_through(lambda stored: Renamed(model, stored))
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
    head, linear = model.get_output_embeddings(), {}
    for name, module in model.named_modules():
        shared = f"{name}.weight" in tied and (module is not head or module.bias is not None)
        if type(module) is nn.Linear and module.weight.dtype == weights.dtype and not shared:
            linear[name] = module
    of_linear = {f"{name}.{part}" for name in linear for part in ("weight", "bias")}
    for name, tensor in model.state_dict().items():
        if name not in of_linear and name not in tied:
            _put(model, name, weights.tensor(name, *tensor.shape, dtype=tensor.dtype))
    for target, source in tied.items():
        if target not in of_linear:
            _put(model, target, model.get_parameter(source))
    for name, module in linear.items():
        source = tied.get(f"{name}.weight", f"{name}.weight").removesuffix(".weight")
        role: Role = "head" if module is head else "router" if name.endswith(ROUTERS) else "layer"
        multiply = weights.linear(
            [Block(source, module.out_features)],
            module.in_features,
            bias=module.bias is not None,
            role=role,
            adaptable=name not in irregular,
        )
        model.set_submodule(name, OwnLinear(module, multiply))
    _compute_buffers(model, weights.device)


def _put(model: Any, name: str, tensor: Tensor) -> None:
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    if own in module._parameters:
        parameter = nn.Parameter(tensor, requires_grad=False)
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        module._parameters[own] = parameter
    else:
        module._buffers[own] = tensor


def _compute_buffers(model: Any, device: torch.device) -> None:
    """Computes what no checkpoint has, such as frequencies of rotary positions, by transformers' own code."""
    for module in model.modules():
        missing = [name for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]
        for name in missing:
            unset = torch.nan if module._buffers[name].is_floating_point() else 0
            module._buffers[name] = torch.full_like(module._buffers[name], unset, device=device)
        module._is_hf_initialized = not missing
    with torch.device(device):
        model.initialize_weights()
    for name, module in model.named_modules():
        tensors = {**module.__dict__, **module._parameters, **module._buffers}
        for own, value in tensors.items():
            if isinstance(value, Tensor) and value.is_meta:
                raise CheckpointError(f"transformers' code of {name or 'the model'} keeps {own!r} where no file has it")
