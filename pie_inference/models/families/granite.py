"""Granite 3 (IBM 2024): Llama with factors on its embeddings, scores, logits, and on what each layer adds."""

from __future__ import annotations

from dataclasses import dataclass

from ...attention.interface import AttentionSpec
from ...layers.attention import Attention
from ...layers.mlp import GatedMlp
from ...layers.norm import RmsNorm
from ...layers.pre_norm import PreNormLayer
from ...layers.scaled import Scaled
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import ROOT, Decoder, load_embedding, load_head


@dataclass(frozen=True)
class GraniteConfig(ModelConfig):
    """The configuration of a Granite, with its factors."""

    mlp_bias: bool
    embedding_factor: float
    residual_factor: float
    logit_divisor: float


def read(config: ConfigJson) -> GraniteConfig:
    """Reads a config.json."""
    spec = AttentionSpec(scale=config.number("attention_multiplier", 1.0))
    return GraniteConfig.read(
        config,
        attention=(spec,) * config.whole("num_hidden_layers"),
        mlp_bias=config.flag("mlp_bias"),
        embedding_factor=config.number("embedding_multiplier", 1.0),
        residual_factor=config.number("residual_multiplier", 1.0),
        logit_divisor=config.number("logits_scaling", 1.0),
    )


def build(config: GraniteConfig, weights: WeightLoader) -> Decoder:
    """Loads GraniteForCausalLM."""

    def layer(index: int) -> PreNormLayer:
        prefix, factor = f"{ROOT}.layers.{index}", config.residual_factor
        size, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
        attention = Attention(weights, index, f"{prefix}.self_attn", config.heads, bias=bias, out_bias=bias)
        mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, bias=config.mlp_bias, activation=config.activation)
        return PreNormLayer(weights, prefix, size, config.norm_eps, Scaled(attention, factor), Scaled(mlp, factor))

    embedding = Scaled(load_embedding(config, weights), config.embedding_factor)
    layers = [layer(index) for index in range(config.num_layers)]
    norm = RmsNorm(weights, f"{ROOT}.norm", config.hidden_size, config.norm_eps)
    head = Scaled(load_head(config, weights), 1 / config.logit_divisor)
    return Decoder(config, embedding, layers, norm, head, weights.device)
