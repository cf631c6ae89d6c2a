"""Finds what of a model becomes ours, and makes it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....ops.interface import Linear, Ops
from .attention import AttentionParts, attention_parts
from .layer import LayerParts, layer_parts
from .mlp import MlpParts, mlp_parts

Joined = tuple[str, ...]
"""Linear layers over the same rows, with their outputs side by side."""


@dataclass(frozen=True)
class Block:
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
class Blocks:
    """What is proved of a model."""

    blocks: Sequence[Block]
    layers: Mapping[str, LayerParts]

    def take(self, model: Any, products: Mapping[Joined, Linear], ops: Ops) -> None:
        """Makes modules ours whose linear layers are one product, once they have their weights and norms."""
        taken = set()
        for block in self.blocks:
            if block.joined in products:
                module = model.get_submodule(block.name)
                last = module._modules[block.parts.last]
                block.parts.install(module, products[block.joined], last.multiply, ops)
                taken.add(block.name)
        for name, parts in self.layers.items():
            if f"{name}.{parts.attention}" in taken:
                parts.install(model.get_submodule(name))


def find(model: Any) -> Blocks:
    """Proves what it can of a model that has no weights yet."""
    blocks, layers, attentions = [], {}, set()
    for name, module in model.named_modules():
        if (attention := attention_parts(module)) is not None:
            blocks.append(Block(name, attention))
            attentions.add(module)
        elif (mlp := mlp_parts(module)) is not None:
            blocks.append(Block(name, mlp))
    for name, module in model.named_modules():
        if (layer := layer_parts(module, attentions)) is not None:
            layers[name] = layer
    return Blocks(blocks, layers)
