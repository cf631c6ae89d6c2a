"""Hugging Face's config.json as a frozen object. Everything unsupported is refused here, before weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..attention.interface import AttentionSpec
from ..errors import CheckpointError
from ..layers.rotary import ROPE_TYPES


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding. `parameters` are those of Hugging Face's `rope_scaling` or `rope_parameters`."""

    type: str
    theta: float
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only Transformer."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    tie_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    attention: tuple[AttentionSpec, ...]  # of each layer


def parse_model_config(config: Mapping[str, Any], architecture: str) -> ModelConfig:
    """Reads a config.json of the Llama family. Raises CheckpointError naming the key."""
    try:
        parsed = _parse(config, architecture)
    except KeyError as error:
        raise CheckpointError(f"config.json: {error} is missing") from None
    _check(config, parsed)
    return parsed


def _parse(config: Mapping[str, Any], architecture: str) -> ModelConfig:
    num_heads, num_layers = config["num_attention_heads"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    return ModelConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        max_context=config.get("max_position_embeddings", 2048),
        tie_embeddings=config.get("tie_word_embeddings", False),
        attention_bias=config.get("attention_bias", False),
        mlp_bias=config.get("mlp_bias", False),
        rope=_parse_rope(config),
        attention=(AttentionSpec(scale=head_dim**-0.5),) * num_layers,
    )


def _parse_rope(config: Mapping[str, Any]) -> RopeConfig:
    """`rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    parameters.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    theta = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
    return RopeConfig(kind, theta, parameters)


def _check(config: Mapping[str, Any], parsed: ModelConfig) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"config.json: hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if parsed.num_heads % parsed.num_kv_heads:
        raise CheckpointError("config.json: num_attention_heads is not a multiple of num_key_value_heads")
    if parsed.rope.type not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise CheckpointError(f"config.json: rope type {parsed.rope.type!r} is not supported, only {known}")
    if (parsed.rope.parameters.get("partial_rotary_factor") or 1.0) != 1.0:
        raise CheckpointError("config.json: partial_rotary_factor other than 1 is not supported")
