"""Llama 2 and 3 (Touvron et al. 2023): pre-norm layers, rotary positions, grouped queries, gated feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from ...layers.attention import Attention
from ...layers.mlp import GatedMlp
from ...layers.pre_norm import PreNormLayer
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import ROOT, Decoder, plain_decoder


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """The configuration of a Llama, whose feed-forward layers may have biases."""

    mlp_bias: bool


def read(config: ConfigJson) -> LlamaConfig:
    """Reads a config.json."""
    return LlamaConfig.read(config, mlp_bias=config.flag("mlp_bias"))


def build(config: LlamaConfig, weights: WeightLoader, root: str = ROOT) -> Decoder:
    """Loads LlamaForCausalLM. The names of its tensors begin with `root`."""

    def layer(index: int, prefix: str) -> PreNormLayer:
        size, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
        attend = Attention(weights, index, f"{prefix}.self_attn", config.heads, bias=bias, out_bias=bias)
        mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, bias=config.mlp_bias, activation=config.activation)
        return PreNormLayer(weights, prefix, size, config.norm_eps, attend, mlp)

    return plain_decoder(config, weights, layer, root)
