"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values, and windows in upper layers."""

from __future__ import annotations

from ...layers.attention import Attention
from ...loading.weights import WeightLoader
from ..config import ModelConfig, windows_by_type
from ..config_json import ConfigJson
from ..decoder import Decoder, pre_norm_decoder


def read(config: ConfigJson) -> ModelConfig:
    """Reads a config.json."""
    return ModelConfig.read(config, windows=windows(config))


def windows(config: ConfigJson) -> list[int | None]:
    """The window of each layer: from layer `max_window_layers` on, if `use_sliding_window` is set; null: no window."""
    config = config.with_defaults(sliding_window=4096)
    num_layers = config.whole("num_hidden_layers")
    if not config.flag("use_sliding_window"):
        return [None] * num_layers
    first, kinds = config.whole("max_window_layers", 28, least=0), ("full_attention", "sliding_attention")
    types = config.items("layer_types") or [kinds[layer >= first] for layer in range(num_layers)]
    return windows_by_type(config, types, config.optional_whole("sliding_window"))


def build(config: ModelConfig, weights: WeightLoader) -> Decoder:
    """Loads Qwen2ForCausalLM."""

    def attention(index: int, prefix: str) -> Attention:
        return Attention(weights, index, prefix, config.heads, bias=True)

    return pre_norm_decoder(config, weights, attention)
