"""The vision tower of SigLIP (Zhai et al. 2023), as Idefics 2 and 3 use it: a Transformer over patches of square tiles.

Torch's own operations only, so it is the same on every device. Each rank has all of it: it is small beside the decoder,
and what it computes is the same on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ....errors import CheckpointError
from ....loading.weights import WeightLoader
from ...config_json import ConfigJson

ACTIVATION = "gelu_pytorch_tanh"
CHANNELS = 3


@dataclass(frozen=True)
class SiglipConfig:
    """Shape of the tower. Sizes of images and patches are in pixels of a side."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    norm_eps: float

    @property
    def side(self) -> int:
        """Patches of a side of a tile."""
        return self.image_size // self.patch_size

    @property
    def patches(self) -> int:
        """Patches of a tile."""
        return self.side**2

    @property
    def parameters(self) -> int:
        """Numbers in the matrices of a layer."""
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)


def read(config: ConfigJson) -> SiglipConfig:
    """Reads a `vision_config`, with transformers' defaults. Raises CheckpointError."""
    activation = config.text("hidden_act", ACTIVATION)
    if activation != ACTIVATION:
        raise CheckpointError(f"config.json: vision_config: hidden_act {activation!r} is not supported")
    if config.whole("num_channels", CHANNELS) != CHANNELS:
        raise CheckpointError(f"config.json: vision_config: num_channels must be {CHANNELS}")
    read = SiglipConfig(
        hidden_size=config.whole("hidden_size", 1152),
        intermediate_size=config.whole("intermediate_size", 3072),
        num_layers=config.whole("num_hidden_layers", 12),
        num_heads=config.whole("num_attention_heads", 16),
        image_size=config.whole("image_size", 224),
        patch_size=config.whole("patch_size", 32),
        norm_eps=config.number("layer_norm_eps", 1e-6),
    )
    if read.hidden_size % read.num_heads:
        raise CheckpointError("config.json: vision_config: hidden_size is not a multiple of num_attention_heads")
    if read.image_size < read.patch_size:
        raise CheckpointError("config.json: vision_config: image_size is smaller than patch_size")
    return read


class Affine:
    """A linear layer with a bias, or a layer norm's scale and shift: the two tensors NAME.weight and NAME.bias."""

    def __init__(self, weights: WeightLoader, name: str, *shape: int) -> None:
        self.weight = weights.tensor(f"{name}.weight", *shape)
        self.bias = weights.tensor(f"{name}.bias", shape[0])


class SiglipTower:
    """Tiles to vectors of patches."""

    def __init__(self, config: SiglipConfig, weights: WeightLoader, root: str) -> None:
        size, patch = config.hidden_size, config.patch_size
        self._config = config
        self._patch = Affine(weights, f"{root}.embeddings.patch_embedding", size, CHANNELS, patch, patch)
        table = weights.tensor(f"{root}.embeddings.position_embedding.weight", config.patches, size)
        self._positions = table.index_select(0, bucketed_positions(config.side).to(table.device))
        layers = range(config.num_layers)
        self._layers = [_Layer(config, weights, f"{root}.encoder.layers.{layer}") for layer in layers]
        self._last = Affine(weights, f"{root}.post_layernorm", size)

    def begin(self, tiles: Tensor) -> Tensor:
        """Tiles [N, 3, S, S], normalized, to states [N, patches, hidden_size]."""
        patch = self._config.patch_size
        patches = functional.conv2d(tiles, self._patch.weight, self._patch.bias, stride=patch)
        return patches.flatten(2).transpose(1, 2) + self._positions

    def run(self, states: Tensor, begin: int, end: int) -> Tensor:
        """States before layer `begin` to those before layer `end`."""
        for layer in self._layers[begin:end]:
            states = layer(states)
        return states

    def finish(self, states: Tensor) -> Tensor:
        """States behind the last layer to what they say of each patch."""
        return normalized(states, self._last, self._config.norm_eps)


class _Layer:
    def __init__(self, config: SiglipConfig, weights: WeightLoader, prefix: str) -> None:
        size, inner = config.hidden_size, config.intermediate_size
        self._heads, self._eps = config.num_heads, config.norm_eps
        self._before_attention = Affine(weights, f"{prefix}.layer_norm1", size)
        self._qkv = [Affine(weights, f"{prefix}.self_attn.{name}_proj", size, size) for name in "qkv"]
        self._out = Affine(weights, f"{prefix}.self_attn.out_proj", size, size)
        self._before_mlp = Affine(weights, f"{prefix}.layer_norm2", size)
        self._up = Affine(weights, f"{prefix}.mlp.fc1", inner, size)
        self._down = Affine(weights, f"{prefix}.mlp.fc2", size, inner)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._attend(normalized(hidden, self._before_attention, self._eps))
        rows = functional.gelu(applied(normalized(hidden, self._before_mlp, self._eps), self._up), approximate="tanh")
        return hidden + applied(rows, self._down)

    def _attend(self, rows: Tensor) -> Tensor:
        """Every patch sees every patch of its tile."""
        tiles, patches, size = rows.shape
        query, key, value = (
            applied(rows, each).view(tiles, patches, self._heads, size // self._heads).transpose(1, 2)
            for each in self._qkv
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        return applied(attended.transpose(1, 2).reshape(tiles, patches, size), self._out)


def applied(rows: Tensor, layer: Affine) -> Tensor:
    """The output of a linear layer."""
    return functional.linear(rows, layer.weight, layer.bias)


def normalized(rows: Tensor, layer: Affine, eps: float) -> Tensor:
    """The output of a layer norm."""
    return functional.layer_norm(rows, layer.weight.shape, layer.weight, layer.bias, eps)


def bucketed_positions(side: int) -> Tensor:
    """The row of the table of positions that each patch of a whole tile takes, int64 [side * side].

    The rows are the patches' numbers but for rounding: checkpoints were trained with fractions of the tile that are
    sorted into buckets in float32, where a fraction may fall into the bucket before its own (transformers:
    Idefics3VisionEmbeddings).
    """
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))
    buckets = torch.bucketize(fractions.clamp(max=1.0 - 1e-6), bounds, right=True)
    return (buckets[:, None] * side + buckets[None, :]).flatten()
