"""Qwen3 (Yang et al. 2025): Qwen2 without biases, with the query and key of each head normalized."""

from __future__ import annotations

from ...layers.attention import Attention
from ...layers.mlp import GatedMlp
from ...layers.pre_norm import PreNormLayer
from ...layers.qk_norm import HeadNorm
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import Decoder, plain_decoder
from . import qwen2


def read(config: ConfigJson) -> ModelConfig:
    """Reads a config.json."""
    return qwen2.read(config.with_defaults(head_dim=128))


def attention(config: ModelConfig, weights: WeightLoader, index: int, prefix: str) -> Attention:
    """The attention of layer `index`."""
    norm = HeadNorm(weights, prefix, config.heads, config.norm_eps)
    bias = config.attention_bias
    return Attention(weights, index, prefix, config.heads, bias=bias, out_bias=bias, norm=norm)


def build(config: ModelConfig, weights: WeightLoader) -> Decoder:
    """Loads Qwen3ForCausalLM."""

    def layer(index: int, prefix: str) -> PreNormLayer:
        size, inner = config.hidden_size, config.intermediate_size
        mixer = attention(config, weights, index, f"{prefix}.self_attn")
        mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, activation=config.activation)
        return PreNormLayer(weights, prefix, size, config.norm_eps, mixer, mlp)

    return plain_decoder(config, weights, layer)
