"""Mixtral (Jiang et al. 2024): Mistral with eight experts per layer; each token uses two of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...layers.attention import Attention
from ...layers.moe import ExpertNames, MixtureOfExperts, MoeShape
from ...layers.pre_norm import PreNormLayer
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import Decoder, plain_decoder

NAMES = ExpertNames(gate="w1", up="w3", down="w2")


@dataclass(frozen=True)
class MixtralConfig(ModelConfig):
    """The configuration of a Mixtral, with a mixture of experts in every layer."""

    moe: MoeShape


def read(config: ConfigJson) -> MixtralConfig:
    """Reads a config.json. Its window is for all layers; null: no window."""
    config = config.with_defaults(num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6)
    moe = MoeShape(
        hidden_size=config.whole("hidden_size"),
        inner_size=config.whole("intermediate_size"),
        num_experts=config.whole("num_local_experts", 8),
        experts_per_token=config.whole("num_experts_per_tok", 2),
        renormalize=True,
    )
    windows = [config.optional_whole("sliding_window")] * config.whole("num_hidden_layers")
    return MixtralConfig.read(config, windows=windows, attention_bias=False, moe=moe)


def build(config: MixtralConfig, weights: WeightLoader) -> Decoder:
    """Loads MixtralForCausalLM."""

    def layer(index: int, prefix: str) -> PreNormLayer:
        attention = Attention(weights, index, f"{prefix}.self_attn", config.heads)
        experts = MixtureOfExperts(weights, f"{prefix}.block_sparse_moe", config.moe, config.activation, NAMES)
        return PreNormLayer(weights, prefix, config.hidden_size, config.norm_eps, attention, experts)

    return plain_decoder(config, weights, layer)
