"""The text model of Qwen3.5 (Qwen team 2026): a Gated DeltaNet in three of four layers, attention with a gate in the
fourth.

Folders of Qwen3_5ForConditionalGeneration have the same model beside a vision tower, which is not served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...attention.interface import AttentionPlan, AttentionSpec
from ...device.ranks import Ranks, share
from ...errors import CheckpointError, NotOfFamily
from ...layers.gated_delta import DeltaBlocks, DeltaShape, GatedDelta, separate_blocks
from ...layers.mlp import FeedForward, GatedMlp
from ...layers.norm import RmsNorm, load_norm_weight
from ...layers.pre_norm import PreNormLayer
from ...layers.shape import AttentionShape
from ...loading.weights import Block, WeightLoader
from ...ops.interface import Rotation
from ...recurrence.states import StateShape
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import ROOT, Decoder, load_embedding, load_head


class GatedAttention:
    """Grouped-query attention with normalized queries and keys; the sigmoid of a gate multiplies what each head finds.
    The gate of a head stands behind its query in `q_proj`."""

    def __init__(
        self, weights: WeightLoader, layer: int, prefix: str, shape: AttentionShape, eps: float, *, bias: bool
    ) -> None:
        """`layer` counts the layers that have attention. Norms store their weights minus one."""
        queries, keys, values = shape.widths
        blocks = [
            Block(f"{prefix}.{name}_proj", rows) for name, rows in zip("qkv", (2 * queries, keys, values), strict=True)
        ]
        self._qkv = weights.linear(blocks, shape.hidden_size, bias=bias, split="outputs")
        out = [Block(f"{prefix}.o_proj", shape.hidden_size)]
        self._out = weights.linear(out, queries, bias=bias, split="inputs")
        self._query_norm, self._key_norm = (
            load_norm_weight(weights, f"{prefix}.{name}_norm", shape.head_dim, add_one=True) for name in "qk"
        )
        self._heads = share(weights.ranks, shape.num_heads, "attention heads")
        self._kv_heads = share(weights.ranks, shape.num_kv_heads, "key-value heads")
        self._layer, self._dim, self._eps, self._ops = layer, shape.head_dim, eps, weights.ops

    def __call__(self, rows: Tensor, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        found = self._qkv(rows).view(len(rows), -1, self._dim)
        query_gate, key_value = found[:, : 2 * self._heads], found[:, 2 * self._heads :]
        query = self._ops.rms_norm(query_gate[:, ::2], self._query_norm, self._eps)
        key = key_value[:, : self._kv_heads]
        key.copy_(self._ops.rms_norm(key, self._key_norm, self._eps))
        for vectors in (query, key):
            self._ops.rotate_(vectors[..., : rotation.dim], rotation)
        gate = query_gate[:, 1::2].sigmoid()
        attended = attention.attend(self._layer, query, key_value)
        return self._out(attended.view_as(gate).mul_(gate).flatten(1))


ROOTS = (ROOT, "model.language_model")
"""Beginnings of the tensors' names, in text checkpoints and in those with images."""
DEFAULTS = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
}
KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class Qwen35Config(ModelConfig):
    """The configuration of a Qwen3.5. `attention` has the layers with attention only."""

    delta: DeltaShape
    attends: tuple[bool, ...]  # for each layer, whether it has attention

    @property
    def state(self) -> StateShape | None:
        return StateShape(self.attends.count(False), self.delta.numbers)


def read(config: ConfigJson) -> Qwen35Config:
    """Reads a config.json, or its `text_config` if the model takes images; whether the head is the table is said
    outside of that."""
    tied = config.flag("tie_word_embeddings")
    config = config.within("text_config").with_defaults(**DEFAULTS)
    return Qwen35Config.read(config, tie_embeddings=tied, partly=True, **hybrid_fields(config))


def hybrid_fields(config: ConfigJson) -> dict[str, Any]:
    """The fields that say which layers have attention and which a state."""
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise NotOfFamily(f"config.json: hidden_act {config.text('hidden_act')!r} is not supported, only silu")
    attends = tuple(kind == "full_attention" for kind in layer_types(config))
    spec = AttentionSpec(config.whole("head_dim") ** -0.5)
    return {"attention": (spec,) * attends.count(True), "delta": read_delta(config), "attends": attends}


def read_delta(config: ConfigJson) -> DeltaShape:
    """Sizes of the layers without attention."""
    key_heads, heads = config.whole("linear_num_key_heads"), config.whole("linear_num_value_heads")
    if heads % key_heads:
        raise CheckpointError(
            f"config.json: linear_num_value_heads {heads} is no multiple of linear_num_key_heads {key_heads}"
        )
    return DeltaShape(
        hidden_size=config.whole("hidden_size"),
        key_heads=key_heads,
        heads=heads,
        key_dim=config.whole("linear_key_head_dim"),
        value_dim=config.whole("linear_value_head_dim"),
        width=config.whole("linear_conv_kernel_dim", least=2),
    )


def layer_types(config: ConfigJson) -> list[str]:
    """The kind of each layer: every fourth has attention, unless the config.json says otherwise."""
    count, interval = config.whole("num_hidden_layers"), config.whole("full_attention_interval", 4)
    found = config.items("layer_types") or [KINDS[layer % interval == interval - 1] for layer in range(count)]
    if len(found) != count:
        raise CheckpointError(f"config.json: layer_types has {len(found)} entries for {count} layers")
    for unknown in (kind for kind in found if kind not in KINDS):
        raise CheckpointError(f"config.json: layer type {unknown!r} is not supported, only {', '.join(KINDS)}")
    if "full_attention" not in found:
        raise CheckpointError("config.json: layer_types has no layer with attention, and pages are made of its keys")
    return found


def build(config: Qwen35Config, weights: WeightLoader) -> Decoder:
    """Loads Qwen3_5ForCausalLM, or the text model of Qwen3_5ForConditionalGeneration."""
    size, inner = config.hidden_size, config.intermediate_size
    return hybrid_decoder(config, weights, lambda index, prefix: GatedMlp(weights, prefix, size, inner))


def hybrid_decoder(
    config: Qwen35Config,
    weights: WeightLoader,
    feed_forward: Callable[[int, str], FeedForward],
    projections: Callable[[str, DeltaShape, Ranks], DeltaBlocks] = separate_blocks,
) -> Decoder:
    """A decoder with layers of both kinds; `feed_forward(index, prefix of its tensors)` makes that of a layer."""
    root = next((root for root in ROOTS if f"{root}.norm.weight" in weights), ROOT)
    size, eps = config.hidden_size, config.norm_eps

    def layer(index: int) -> PreNormLayer:
        prefix, attends = f"{root}.layers.{index}", config.attends[index]
        number = config.attends[:index].count(attends)  # among those of its kind
        mixer: GatedAttention | GatedDelta
        if attends:
            name, bias = f"{prefix}.self_attn", config.attention_bias
            mixer = GatedAttention(weights, number, name, config.heads, eps, bias=bias)
        else:
            mixer = GatedDelta(weights, number, f"{prefix}.linear_attn", config.delta, eps, projections)
        mlp = feed_forward(index, f"{prefix}.mlp")
        return PreNormLayer(weights, prefix, size, eps, mixer, mlp, add_one=True, capturable=attends)

    embedding, layers = load_embedding(config, weights, root), [layer(index) for index in range(config.num_layers)]
    norm = RmsNorm(weights, f"{root}.norm", size, eps, add_one=True)
    return Decoder(config, embedding, layers, norm, load_head(config, weights, root), weights.device)
