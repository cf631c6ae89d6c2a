"""Qwen3 (Yang et al. 2025): Qwen2 without biases, with the query and key of each head normalized."""

from __future__ import annotations

from functools import partial

from ...layers.attention import Attention
from ...layers.qk_norm import HeadNorm
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import Decoder, pre_norm_decoder
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
    return pre_norm_decoder(config, weights, partial(attention, config, weights))
