"""Mistral (Jiang et al. 2023): Llama whose layers may look back through a window only."""

from __future__ import annotations

from ...loading.weights import WeightLoader
from ..config_json import ConfigJson
from ..decoder import Decoder
from . import llama


def read(config: ConfigJson) -> llama.LlamaConfig:
    """Reads a config.json. The window is that of all layers; null: none."""
    config = config.with_defaults(sliding_window=4096, num_key_value_heads=8)
    windows = [config.optional_whole("sliding_window")] * config.whole("num_hidden_layers")
    return llama.LlamaConfig.read(config, windows=windows, attention_bias=False, mlp_bias=False)


def build(config: llama.LlamaConfig, weights: WeightLoader) -> Decoder:
    """Loads MistralForCausalLM."""
    return llama.build(config, weights)
