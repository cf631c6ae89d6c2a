"""Llama 2 and 3 (Touvron et al. 2023): pre-norm layers, rotary positions, grouped queries, gated feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from ...layers.attention import Attention
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import ROOT, Decoder, pre_norm_decoder


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """The configuration of a Llama, whose feed-forward layers may have biases."""

    mlp_bias: bool


def read(config: ConfigJson) -> LlamaConfig:
    """Reads a config.json."""
    return LlamaConfig.read(config, mlp_bias=config.flag("mlp_bias"))


def build(config: LlamaConfig, weights: WeightLoader, root: str = ROOT) -> Decoder:
    """Loads LlamaForCausalLM. The names of its tensors begin with `root`."""

    def attention(index: int, prefix: str) -> Attention:
        bias = config.attention_bias
        return Attention(weights, index, prefix, config.heads, bias=bias, out_bias=bias)

    return pre_norm_decoder(config, weights, attention, root, bias=config.mlp_bias)
