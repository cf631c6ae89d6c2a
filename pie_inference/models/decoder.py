"""The frame of every model: embedding, layers over one residual stream, last norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..attention.interface import AttentionPlan
from ..errors import BatchError
from ..layers.attention import Attention
from ..layers.mlp import GatedMlp
from ..layers.norm import RmsNorm
from ..layers.pre_norm import PreNormLayer
from ..layers.rotary import Rotary
from ..loading.weights import Block, WeightLoader
from ..ops.interface import Rotation
from .config import ModelConfig
from .vision import VisionTower

ROOT = "model"
"""The beginning of the names of most tensors."""
HEADS = ("lm_head", "language_model.lm_head")
"""The output head, and its name in older checkpoints with images."""


class Layer(Protocol):
    """One Transformer layer."""

    capturable: bool
    """Whether a graph can record the layer: its launches do not depend on numbers on the device."""

    def __call__(self, hidden: Tensor, change: Tensor | None, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        """Adds `change`, the result of the layer before, and its own results except the last to the residual stream
        `hidden` [T, hidden_size] in place. Returns its last result, which the next layer adds. (So an addition can
        share a kernel with the norm that follows it.)"""


class Decoder:
    """Implements `Model`."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: Callable[[Tensor], Tensor],
        layers: Sequence[Layer],
        norm: RmsNorm,
        head: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        self.config = config
        self.vision: VisionTower | None = None
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self.capturable = all(layer.capturable for layer in layers)
        distinct = config.distinct_ropes
        self._rotaries = [Rotary(rope, device) for rope in distinct]
        self._rotary_of_layer = [distinct.index(rope) for rope in config.rope]

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embedding(tokens)

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: AttentionPlan,
        keep: Tensor,
        tokens: Tensor | None = None,
    ) -> Tensor:
        rotations = [rotary.at(positions, hidden.dtype) for rotary in self._rotaries]
        change = None
        for layer, rotary in zip(self._layers, self._rotary_of_layer, strict=True):
            change = layer(hidden, change, rotations[rotary], attention)
        kept = hidden.index_select(0, keep)
        return self._norm.after_adding(kept, None if change is None else change.index_select(0, keep))

    def moves(self, distances: Tensor, dtype: torch.dtype) -> list[Rotation]:
        rotations = [rotary.by(distances, dtype) for rotary in self._rotaries]
        return [rotations[rotary] for rotary in self._rotary_of_layer]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)


def plain_decoder(
    config: ModelConfig, weights: WeightLoader, make_layer: Callable[[int, str], Layer], root: str = ROOT
) -> Decoder:
    """A decoder with an ordinary frame around its layers; `make_layer(index, prefix of its tensors)` makes a layer."""
    embedding = load_embedding(config, weights, root)
    layers = [make_layer(index, f"{root}.layers.{index}") for index in range(config.num_layers)]
    norm = RmsNorm(weights, f"{root}.norm", config.hidden_size, config.norm_eps)
    return Decoder(config, embedding, layers, norm, load_head(config, weights, root), weights.device)


def pre_norm_decoder(
    config: ModelConfig,
    weights: WeightLoader,
    attention: Callable[[int, str], Attention],
    root: str = ROOT,
    **mlp: Any,
) -> Decoder:
    """A decoder whose layers are those of Llama, but for their `attention(index, prefix of its tensors)`. `mlp` are
    further arguments of `GatedMlp`."""

    def layer(index: int, prefix: str) -> PreNormLayer:
        size, inner, mixer = config.hidden_size, config.intermediate_size, attention(index, f"{prefix}.self_attn")
        feed_forward = GatedMlp(weights, f"{prefix}.mlp", size, inner, activation=config.activation, **mlp)
        return PreNormLayer(weights, prefix, size, config.norm_eps, mixer, feed_forward)

    return plain_decoder(config, weights, layer, root)


def load_embedding(config: ModelConfig, weights: WeightLoader, root: str = ROOT) -> Callable[[Tensor], Tensor]:
    """Loads ROOT.embed_tokens, or the output head if they are tied and the checkpoint has that alone: a vector for each
    token, int64 [T] to [T, size]. Every rank has the whole table."""
    table = weights.tensor(f"{_table(config, weights, root)}.weight", config.vocab_size, config.hidden_size)
    return lambda tokens: table.index_select(0, tokens)


def load_head(config: ModelConfig, weights: WeightLoader, root: str = ROOT) -> Callable[[Tensor], Tensor]:
    """Loads the output head, which gives logits, or the embedding again if they are tied. Each rank has a share of the
    vocabulary. As in transformers, they are not tied if the checkpoint has both, with different numbers, whatever its
    config.json says."""
    if not config.has_head:
        return _no_head
    table, own = _table(config, weights, root), _own_head(weights)
    if config.tie_embeddings and not (own and weights.differ(f"{own}.weight", f"{table}.weight")):
        own = table
    block, ranks = Block(own or HEADS[0], config.vocab_size), weights.ranks
    multiply = weights.linear([block], config.hidden_size, split="outputs", role="head")
    return lambda hidden: ranks.all_gather(multiply(hidden)).float()


def _table(config: ModelConfig, weights: WeightLoader, root: str) -> str:
    table, head = f"{root}.embed_tokens", _own_head(weights)
    return head if head and config.tie_embeddings and f"{table}.weight" not in weights else table


def _no_head(hidden: Tensor) -> Tensor:
    raise BatchError("the checkpoint has no output head: its model gives vectors of texts, and no tokens")


def _own_head(weights: WeightLoader) -> str | None:
    return next((name for name in HEADS if f"{name}.weight" in weights), None)
