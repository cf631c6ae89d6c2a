"""Mistral (Jiang et al. 2023): Llama with an optional window in all layers."""

from __future__ import annotations

from ..config_json import ConfigJson
from . import llama


def read(config: ConfigJson) -> llama.LlamaConfig:
    """Reads a config.json. Its window is for all layers; null: no window."""
    config = config.with_defaults(sliding_window=4096, num_key_value_heads=8)
    windows = [config.optional_whole("sliding_window")] * config.whole("num_hidden_layers")
    return llama.LlamaConfig.read(config, windows=windows, attention_bias=False, mlp_bias=False)
