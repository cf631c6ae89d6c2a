"""Gemma 2 (Gemma team 2024): norms on both sides of attention and feed-forward, soft-capped scores and logits, windows
in every other layer, scaled embeddings, and norm weights that are stored minus one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...attention.interface import AttentionPlan, AttentionSpec
from ...layers.attention import Attention
from ...layers.mlp import GatedMlp
from ...layers.norm import RmsNorm
from ...layers.scaled import Scaled
from ...loading.weights import WeightLoader
from ...ops.interface import Rotation
from ..config import ModelConfig, read_activation, windows_by_type
from ..config_json import ConfigJson
from ..decoder import ROOT, Decoder, load_embedding, load_head


@dataclass(frozen=True)
class Gemma2Config(ModelConfig):
    """The configuration of a Gemma, with a bound on the logits."""

    logit_cap: float | None


def read(config: ConfigJson) -> Gemma2Config:
    """Reads a config.json."""
    config = config.with_defaults(head_dim=256, tie_word_embeddings=True, final_logit_softcapping=30.0)
    config = config.with_defaults(attn_logit_softcapping=50.0, sliding_window=4096, query_pre_attn_scalar=256)
    config.refuse("use_bidirectional_attention")
    kinds = ("sliding_attention", "full_attention")
    types = config.items("layer_types") or [kinds[layer % 2] for layer in range(config.whole("num_hidden_layers"))]
    return Gemma2Config.read(config, **gemma_fields(config, types))


def gemma_fields(config: ConfigJson, layer_types: list[str]) -> dict[str, Any]:
    """The fields that a Gemma's config.json writes in its own way."""
    windows = windows_by_type(config, layer_types, config.optional_whole("sliding_window"))
    scale, cap = config.number("query_pre_attn_scalar") ** -0.5, config.optional_number("attn_logit_softcapping")
    return {
        "activation": read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "attention": tuple(AttentionSpec(scale, window, cap) for window in windows),
        "logit_cap": config.optional_number("final_logit_softcapping"),
    }


class SandwichLayer:
    """x + norm(attention(norm(x))), then x + norm(feed_forward(norm(x)))."""

    capturable = True

    def __init__(self, config: ModelConfig, weights: WeightLoader, prefix: str, attention: Attention) -> None:
        size, inner = config.hidden_size, config.intermediate_size
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        norms = [RmsNorm(weights, f"{prefix}.{n}_layernorm", size, config.norm_eps, add_one=True) for n in names]
        self._attention_norm, self._mixed_norm, self._mlp_norm, self._result_norm = norms
        self._attention = attention
        self._mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, activation=config.activation)

    def __call__(self, hidden: Tensor, change: Tensor | None, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        mixed = self._attention(self._attention_norm.after_adding(hidden, change), rotation, attention)
        return self._result_norm(self._mlp(self._mlp_norm.after_adding(hidden, self._mixed_norm(mixed))))


def build(config: Gemma2Config, weights: WeightLoader) -> Decoder:
    """Loads Gemma2ForCausalLM."""

    def layer(index: int, prefix: str) -> SandwichLayer:
        bias = config.attention_bias
        attention = Attention(weights, index, f"{prefix}.self_attn", config.heads, bias=bias, out_bias=bias)
        return SandwichLayer(config, weights, prefix, attention)

    layers = [layer(index, f"{ROOT}.layers.{index}") for index in range(config.num_layers)]
    return gemma_decoder(config, weights, ROOT, layers)


def gemma_decoder(config: Gemma2Config, weights: WeightLoader, root: str, layers: list[SandwichLayer]) -> Decoder:
    """The frame around the layers; `root` is the beginning of the names of tensors."""
    # The factor is rounded to the model's dtype, as it was in training.
    factor = float(torch.tensor(config.hidden_size**0.5, dtype=weights.dtype))
    embedding = Scaled(load_embedding(config, weights, root), factor)
    norm = RmsNorm(weights, f"{root}.norm", config.hidden_size, config.norm_eps, add_one=True)
    head, cap = load_head(config, weights, root), config.logit_cap  # logits are between minus and plus this one
    capped = head if cap is None else lambda hidden: head(hidden).div_(cap).tanh_().mul_(cap)
    return Decoder(config, embedding, layers, norm, capped, weights.device)
