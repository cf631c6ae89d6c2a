"""The tensors of a checkpoint for a module of transformers: by its table of names, one at a time, never twice in
memory. Linear layers become ours, so that quantization, adapters and kernels work as in a family of ours."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from ....errors import CheckpointError, ConfigError
from ....loading.checkpoint import missing
from ....loading.quantized.layers import QuantizedTensors
from ....loading.quantized.scheme import TAKE_THE_ORIGINAL
from ....loading.weights import Block, Role, TensorSource, WeightLoader
from ....ops.interface import Linear
from ..base import base_of
from ..code import first_line
from ..ours.take import Joined, OwnModule
from ..parts import batched_experts_of, experts_of, is_transposed, stacks_of, take_experts, takes_experts
from .split import Splits

Sources = list[tuple[str, str]]
"""Tensors of the checkpoint, each with the pattern of the converter that takes it."""

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""A number in the name of a tensor; the last one is that of the expert."""

ROUTERS = (".gate", ".router", ".router.proj", "_gate", "_router", "_coefs")
"""Endings of linear layers that choose experts, or mix streams: they are never quantized."""

WEIGHT = ".weight"

PLAIN = (".dt_proj",)
"""Endings of linear layers that stay as they are, as code reads their bias."""


class Renamed:
    """A checkpoint by the names that the module has: implements `RenamedTensors`.

    The experts of a layer are one parameter of the module, and in most checkpoints tensors of their own. Those are also
    read by the names of `experts`.
    """

    def __init__(self, model: Any, stored: TensorSource, as_stored: QuantizedTensors | None) -> None:
        """Raises CheckpointError if a tensor is missing, or has another shape than the module says."""
        self._model, self._stored, self._as_stored = model, stored, as_stored
        self.quantized: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._converted: dict[str, tuple[str, Sources]] = {}  # by any of the results: the first one, and its sources
        self._made: dict[str, Tensor] = {}
        self._experts: dict[str, list[list[str]]] = {}  # by parameter, the tensors of each expert
        self._slices: dict[str, tuple[str, int]] = {}
        self._alone: set[str] = set()
        self._kept: tuple[str, Tensor] = ("", torch.empty(0))
        table = get_model_conversion_mapping(model)
        self._converters = {p: one for one in table if isinstance(one, WeightConverter) for p in one.source_patterns}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        self._in_file = _quantized_weights(stored, as_stored)
        self._transposed = {
            f"{name}.{part}": is_transposed(module)
            for name, module in (experts_of(model) | batched_experts_of(model)).items()
            for part in stacks_of(module)
        }
        linear = (each for each in model.named_modules() if getattr(each[1], "is_turned", False))
        self._turned = {name + WEIGHT for name, _ in linear}
        self._assign(table)
        tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
        for one, other in tied.items():
            if one in self._renamed and other not in self:  # the checkpoint has it under this name alone
                self._renamed[other] = self._renamed.pop(one)
        self._check(tied)
        self.tied = {one: other for one, other in tied.items() if not self._differ(one, other)}
        """Parameters that are another one, by their names: that one's."""

    def __contains__(self, name: str) -> bool:
        return name in self._renamed or name in self._converted or name in self._alone or name in self._slices

    def read(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor as it is stored, or as it is made of those that are. Raises CheckpointError."""
        if name in self._alone:
            return self._stored.read(name, shape)
        if name in self._slices:
            stacked, expert = self._slices[name]
            weight = self._stack(stacked)[expert]
            return weight.t() if self._transposed[stacked] else weight
        if name in self._turned:
            return self._stored.read(self._renamed[name], shape[::-1]).t()
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

    def _stack(self, stacked: str) -> Tensor:
        """A parameter of all experts. One that is made of several tensors is kept until another is asked for."""
        if stacked in self._renamed:
            return self._stored.read(self._renamed[stacked], self._shapes[stacked])
        if self._kept[0] != stacked:
            self._kept = (stacked, self.read(stacked, self._shapes[stacked]))
        return self._kept[1]

    def experts(self, stacked: str) -> tuple[list[list[Block]], int]:
        """The rows of the checkpoint whose outputs, side by side, are those of each expert of a parameter, and the
        input features of all."""
        count, outs, ins = self._sizes(stacked)
        if stacked in self.quantized:
            return [[Block(stacked, outs, number * outs, count * outs)] for number in range(count)], ins
        if stacked not in self._experts:
            names = [f"{stacked}.{number}" for number in range(count)]
            self._slices |= {name + WEIGHT: (stacked, number) for number, name in enumerate(names)}
            return [[Block(name, outs)] for name in names], ins
        tensors = self._experts[stacked]
        self._alone.update(*tensors)
        return [[Block(each.removesuffix(WEIGHT), outs // len(own)) for each in own] for own in tensors], ins

    def _differ(self, one: str, other: str) -> bool:
        """Whether the checkpoint has two tensors for parameters that config.json ties: transformers then does not."""
        first, second = self._renamed.get(one), self._renamed.get(other)
        return first is not None and second is not None and self._stored.differ(first, second)

    def _sizes(self, stacked: str) -> tuple[int, int, int]:
        """The sizes of a parameter with all experts: their number, and the output and input features of each."""
        count, first, second = self._shapes[stacked]
        return (count, second, first) if self._transposed[stacked] else (count, first, second)

    def _assign(self, table: Sequence[Any]) -> None:
        """Finds the place of each tensor of the checkpoint; those that the module does not have are left alone."""
        renamings = [one for one in table if isinstance(one, WeightRenaming)]
        converters = [one for one in table if isinstance(one, WeightConverter)]
        known = self._model.state_dict()
        taken: dict[str, Sources] = defaultdict(list)
        for source in sorted(self._names(), key=dot_natural_key):
            target, pattern = self._place(source, renamings, converters, known)
            if target not in known:
                continue
            if pattern is None:
                self._renamed[target] = source
            else:
                taken[target].append((source, pattern))
        for target, sources in taken.items():
            converter = self._converters[sources[0][1]]
            results = converter.target_patterns
            for result in (target.replace(results[0], each) for each in results):
                self._converted[result] = (target, sources)
            if _stacks(converter):
                self._experts[target] = _by_expert(target, sources, converter, self._shapes[target][0])

    def _place(self, source: str, renamings: list[Any], converters: list[Any], known: Any) -> tuple[str, str | None]:
        """The name that a tensor has in the module, and the pattern of the converter that takes it."""
        prefix = self._model.base_model_prefix
        for name in dict.fromkeys((source, _of_text(source), source.removeprefix("model."))):
            for table in ((renamings, converters), ([], [])):
                target, pattern = rename_source_key(name, *table, prefix, known)
                if target in known:
                    return target, pattern
        return source, None

    def _names(self) -> Iterable[str]:
        """The tensors of the checkpoint. Those of a quantized module are one, its weight."""
        if not self._in_file:
            return self._stored.names()
        return dict.fromkeys(self._in_file.get(name, name) for name in self._stored.names())

    def _check(self, tied: Mapping[str, str]) -> None:
        weights = set(self._in_file.values())
        for name, shape in self._shapes.items():
            if name in self._renamed:
                source = self._renamed[name]
                if source in weights:
                    self._take_quantized(name, source)
                else:
                    self._stored.check(source, shape[::-1] if name in self._turned else shape)
            elif name in self._converted:
                quantized = [source for source, _ in self._converted[name][1] if source in weights]
                if quantized and name not in self._experts:
                    raise _unfitting(quantized[0], f"it has its numbers in parts of {name!r}")
                self.quantized |= {each.removesuffix(".weight"): each.removesuffix(".weight") for each in quantized}
            elif name not in tied:
                raise CheckpointError(missing(name, self._stored.names()))

    def _take_quantized(self, name: str, source: str) -> None:
        module = name.removesuffix(WEIGHT)
        kind = type(self._model.get_submodule(module)) if module != name else None
        if (kind is not nn.Linear or name in self._turned) and name not in self._transposed:
            raise _unfitting(source, f"{name!r} is no linear layer")
        self.quantized[module] = source.removesuffix(WEIGHT)
        if name in self._transposed and self._as_stored is not None:
            count, outs, ins = self._sizes(name)
            self._as_stored.read(source, count * outs, ins)  # takes no memory, and finds other shapes

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


def _quantized_weights(stored: TensorSource, as_stored: QuantizedTensors | None) -> dict[str, str]:
    """The tensors of modules that are quantized in the checkpoint, each with the name of its module's weight; that of a
    parameter of all experts is its own."""
    found: dict[str, str] = {}
    if as_stored is None:
        return found
    for name in stored.names():
        for ending in (WEIGHT, *as_stored.scheme.endings):
            module = name.removesuffix(ending)
            if module != name and as_stored.holds(module):
                found[name] = module + WEIGHT if ending.startswith(".") else module
    return found


def _unfitting(weight: str, why: str) -> CheckpointError:
    module = weight.removesuffix(".weight")
    return CheckpointError(f"{module} is quantized, and in transformers' code {why}; {TAKE_THE_ORIGINAL}")


def _stacks(converter: WeightConverter) -> bool:
    """Whether it makes one parameter of the tensors of all experts, with the outputs of each side by side."""
    known = [("MergeModulelist", 0), ("Concatenate", 1)]
    does = [(type(each).__name__, getattr(each, "dim", None)) for each in converter.operations]
    return bool(does) and does == known[: len(does)] and len(converter.target_patterns) == 1


def _by_expert(target: str, sources: Sources, converter: WeightConverter, count: int) -> list[list[str]]:
    """The tensors of each expert, in the order of the converter's patterns. Raises CheckpointError at the first that is
    missing, so that a wrong count takes no memory."""
    found = {(pattern, int(NUMBER.findall(source)[-1])): source for source, pattern in sources}
    experts = []
    for number in range(count):
        for pattern in converter.source_patterns:
            if (pattern, number) not in found:
                name = pattern.replace("*", str(number)).lstrip(".")
                raise CheckpointError(f"tensor '...{name}' is missing, of which {target!r} is made")
        experts.append([found[pattern, number] for pattern in converter.source_patterns])
    return experts


def _of_text(name: str) -> str:
    """The name that a tensor of the text model of a model that sees has in the text model alone."""
    for prefix, own in (("language_model.", ""), ("model.language_model.", "model."), ("thinker.", "")):
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name


class OwnLinear(nn.Module):
    """Stands for an nn.Linear."""

    def __init__(self, linear: nn.Linear, multiply: Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._dtype, self.multiply = linear.weight.dtype, multiply

    @property
    def weight(self) -> Tensor:
        """Tells code that asks the shape and the number format; it has no numbers."""
        return torch.empty(self.out_features, self.in_features, dtype=self._dtype, device="meta")

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.reshape(-1, rows.shape[-1]).contiguous()  # adapters and kernels take no views of columns
        found = self.multiply(flat)  # with ranks, features may be those of this one
        return found.view(*rows.shape[:-1], found.shape[-1])


def fill(
    model: Any, weights: WeightLoader, irregular: Sequence[str], ours: Sequence[OwnModule] = (), whole: bool = False
) -> dict[Joined, Linear]:
    """Gives a module that is on `meta` its weights. `irregular`, `whole`: as in `Survey`. Returns the products of
    linear layers that are one in `ours`, where nothing speaks against it. Raises CheckpointError."""
    renamed = weights.read_through(lambda stored, as_stored: Renamed(model, stored, as_stored))
    experts = experts_of(model) | batched_experts_of(model) if takes_experts(weights) else {}
    tied = renamed.tied
    split = Splits(model, weights.ranks, whole)
    twins = _twins(model, tied)
    linear = _linear_layers(model, weights.dtype, tied)
    of_linear = {f"{name}.{part}" for name in (*linear, *twins) for part in ("weight", "bias")}
    of_experts = {f"{name}.{part}" for name, module in experts.items() for part in stacks_of(module)}
    _fill_others(model, weights, split, of_linear | of_experts | tied.keys())
    for target, source in tied.items():
        if target not in of_linear:
            _put(model, target, model.get_parameter(source))
    regular = {*base_of(model).modules()} - {model.get_submodule(name) for name in (*irregular, *twins.values())}

    def multiply(*names: str) -> Linear:
        modules = [linear[name] for name in names]
        [(ins, bias, adaptable)] = {(one.in_features, one.bias is not None, one in regular) for one in modules}
        sources = [tied.get(name + WEIGHT, name + WEIGHT).removesuffix(WEIGHT) for name in names]
        rows = [Block(source, one.out_features) for source, one in zip(sources, modules, strict=True)]
        is_head = modules[0] is model.get_output_embeddings()
        role: Role = "head" if is_head else "router" if names[0].endswith(ROUTERS) else "layer"
        return split.linear(weights, names, rows, ins, bias=bias, role=role, adaptable=adaptable)

    joined = [own.joined for own in ours if _can_join(own, linear, regular, split)]
    products = {names: multiply(*names) for names in joined}
    together = {name: products[names] for names in joined for name in names}  # until the module is ours
    for name, module in linear.items():
        model.set_submodule(name, OwnLinear(module, together.get(name) or multiply(name)))
    for name, source in twins.items():
        model.set_submodule(name, model.get_submodule(source))
    for name, module in experts.items():
        first, second = (renamed.experts(f"{name}.{part}") for part in stacks_of(module))
        take_experts(module, weights, *split.experts(weights, name, first, second))
    split.add_up_experts()
    _compute_buffers(model, weights.device)
    return products


def _linear_layers(model: Any, dtype: torch.dtype, tied: Mapping[str, str]) -> dict[str, nn.Linear]:
    """Those that become ours, by their names. The head may have the weights of another module."""
    head = model.get_output_embeddings()

    def is_ours(name: str, module: nn.Module) -> bool:
        if type(module) is not nn.Linear or module.weight.dtype != dtype or name.endswith(PLAIN):
            return False
        return name + WEIGHT not in tied or (module is head and module.bias is None)

    return {name: module for name, module in model.named_modules() if is_ours(name, module)}


def _fill_others(model: Any, weights: WeightLoader, split: Splits, but: Collection[str]) -> None:
    """Gives the module all tensors `but` these. Raises CheckpointError, ConfigError."""
    for name, tensor in model.state_dict().items():
        if name in but:
            continue
        if weights.quantized and tensor.dim() > 2 and "expert" in name:
            raise ConfigError(f"--quantization: {type(model).__name__} of transformers runs {name} by code of its own")
        own_share = split.share_of(name)
        _put(model, name, weights.tensor(name, *tensor.shape, dtype=tensor.dtype, own_share=own_share))


def _can_join(own: OwnModule, linear: Mapping[str, nn.Linear], regular: Collection[nn.Module], split: Splits) -> bool:
    """Whether those linear layers of a module that are to be one product may be."""
    if not linear.keys() >= {*own.joined, own.last}:
        return False
    forms = {(linear[name].bias is not None, linear[name] in regular) for name in own.joined}
    routes = any(name.endswith(ROUTERS) for name in (*own.joined, own.last))
    return len(forms) == 1 and not routes and split.can_join(own.joined, own.parts.whole)


def _twins(model: Any, tied: Mapping[str, str]) -> dict[str, str]:
    """Linear layers with the weights of another one, by their names: that one's."""
    pairs = ((one.rpartition("."), other.rpartition(".")) for one, other in tied.items())
    return {
        one: other
        for (one, _, part), (other, _, _) in pairs
        if part == "weight" and all(type(model.get_submodule(each)) is nn.Linear for each in (one, other))
    }


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
    for module in model.modules():  # a module may compute the buffers of those within
        module._is_hf_initialized = not any(buffer.is_meta for buffer in module.buffers())
    for module in model.modules():
        for name in [name for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]:
            unset = torch.nan if module._buffers[name].is_floating_point() else 0
            module._buffers[name] = torch.full_like(module._buffers[name], unset, device=device)
    with torch.device(device):
        model.initialize_weights()
    for name, module in model.named_modules():
        tensors = {**module.__dict__, **module._parameters, **module._buffers}
        for own, value in tensors.items():
            if isinstance(value, Tensor) and value.is_meta:
                raise CheckpointError(f"transformers' code of {name or 'the model'} keeps {own!r} where no file has it")
