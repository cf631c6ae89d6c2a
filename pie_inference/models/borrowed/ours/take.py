"""Finds what of a model becomes ours, and makes it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from ....ops.interface import Linear, Ops
from .attention import AttentionParts, attention_parts
from .layer import LayerParts, OwnLayer, layer_parts
from .mlp import MlpParts, mlp_parts

Joined = tuple[str, ...]
"""Linear layers over the same rows, with their outputs side by side."""


@dataclass(frozen=True)
class OwnModule:
    """A module that ours stand for."""

    name: str
    parts: AttentionParts | MlpParts

    @property
    def joined(self) -> Joined:
        """Those of its linear layers that are one product."""
        return tuple(f"{self.name}.{part}" for part in self.parts.joined)

    @property
    def last(self) -> str:
        """The linear layer behind."""
        return f"{self.name}.{self.parts.last}"


@dataclass(frozen=True)
class OwnModules:
    """What is proved of a model."""

    modules: Sequence[OwnModule]
    layers: Mapping[str, LayerParts]

    def take(self, model: Any, products: Mapping[Joined, Linear], ops: Ops) -> None:
        """Makes modules ours whose linear layers are one product, once they have their weights and norms."""
        taken = set()
        for own in self.modules:
            if own.joined in products:
                module = model.get_submodule(own.name)
                last = module._modules[own.parts.last]
                own.parts.install(module, products[own.joined], last.multiply, ops)
                taken.add(own.name)
        for name, parts in self.layers.items():
            if f"{name}.{parts.attention}" in taken:
                parts.install(model.get_submodule(name))
        for layers in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
            for one, following in pairwise(layer.forward for layer in layers):
                if isinstance(one, OwnLayer) and isinstance(following, OwnLayer):
                    one.next = following


def find(model: Any) -> OwnModules:
    """Proves what it can of a model that has no weights yet."""
    modules, layers, attentions = [], {}, set()
    for name, module in model.named_modules():
        if (attention := attention_parts(module)) is not None:
            modules.append(OwnModule(name, attention))
            attentions.add(module)
        elif (mlp := mlp_parts(module)) is not None:
            modules.append(OwnModule(name, mlp))
    for name, module in model.named_modules():
        if (layer := layer_parts(module, attentions)) is not None:
            layers[name] = layer
    return OwnModules(modules, layers)
