"""Qwen3 with mixtures of experts (Yang et al. 2025), in all layers or in some."""

from __future__ import annotations

from dataclasses import dataclass

from ...layers.mlp import GatedMlp
from ...layers.moe import MixtureOfExperts, MoeShape
from ...layers.pre_norm import PreNormLayer
from ...loading.weights import WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import Decoder, plain_decoder
from . import qwen3


@dataclass(frozen=True)
class Qwen3MoeConfig(ModelConfig):
    """The configuration of a Qwen3-MoE, with a mixture of experts in its sparse layers."""

    moe: MoeShape
    sparse: tuple[bool, ...]  # for each layer, whether it has experts


def read(config: ConfigJson) -> Qwen3MoeConfig:
    """Reads a config.json. Its window is for all layers, if `use_sliding_window` is set."""
    config, num_layers = config.with_defaults(sliding_window=4096), config.whole("num_hidden_layers")
    window = config.optional_whole("sliding_window") if config.flag("use_sliding_window") else None
    return Qwen3MoeConfig.read(
        config, windows=[window] * num_layers, moe=read_moe(config), sparse=sparse_layers(config, num_layers)
    )


def read_moe(config: ConfigJson) -> MoeShape:
    """Sizes of the mixture. The key for the number of experts has a new name since transformers 5."""
    return MoeShape(
        hidden_size=config.whole("hidden_size"),
        inner_size=config.whole("moe_intermediate_size"),
        num_experts=config.whole("num_experts", config.optional_whole("num_local_experts")),
        experts_per_token=config.whole("num_experts_per_tok", 8),
        renormalize=config.flag("norm_topk_prob"),
    )


def sparse_layers(config: ConfigJson, num_layers: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`th layer is sparse, except those in `mlp_only_layers`."""
    step, dense = config.whole("decoder_sparse_step", 1), config.items("mlp_only_layers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))


def build(config: Qwen3MoeConfig, weights: WeightLoader) -> Decoder:
    """Loads Qwen3MoeForCausalLM."""

    def feed_forward(index: int, prefix: str) -> GatedMlp | MixtureOfExperts:
        if config.sparse[index]:
            return MixtureOfExperts(weights, prefix, config.moe, config.activation)
        return GatedMlp(weights, prefix, config.hidden_size, config.intermediate_size, activation=config.activation)

    def layer(index: int, prefix: str) -> PreNormLayer:
        attention = qwen3.attention(config, weights, index, f"{prefix}.self_attn")
        mlp = feed_forward(index, f"{prefix}.mlp")
        return PreNormLayer(weights, prefix, config.hidden_size, config.norm_eps, attention, mlp)

    return plain_decoder(config, weights, layer)
