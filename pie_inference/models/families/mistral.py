"""Mistral (Jiang et al. 2023): Llama with an optional window in all layers, or in those that the config.json names, as
Ministral's does."""

from __future__ import annotations

from ..config import windows_by_type
from ..config_json import ConfigJson
from . import llama


def read(config: ConfigJson) -> llama.LlamaConfig:
    """Reads a config.json. Its window is for all layers, unless it says which; null: no window."""
    config = config.with_defaults(sliding_window=4096, num_key_value_heads=8)
    types = config.items("layer_types") or ["sliding_attention"] * config.whole("num_hidden_layers")
    windows = windows_by_type(config, types, config.optional_whole("sliding_window"))
    return llama.LlamaConfig.read(config, windows=windows, attention_bias=False, mlp_bias=False)
