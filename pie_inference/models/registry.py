"""The architectures that the worker serves, by the name in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CheckpointError
from ..weights import WeightLoader
from .config import ModelConfig, parse_model_config
from .interface import Model
from .llama import Llama

ModelFactory = Callable[[ModelConfig, WeightLoader], Model]

MODELS: Mapping[str, ModelFactory] = {"LlamaForCausalLM": Llama}


def read_architecture(config: Mapping[str, Any]) -> ModelConfig:
    """The configuration of a known architecture. Raises CheckpointError for others, naming those that are known."""
    names = config.get("architectures") or []
    known = [name for name in names if name in MODELS]
    if not known:
        named = ", ".join(names) or "none"
        raise CheckpointError(f"config.json: architecture {named} is not supported; known: {', '.join(MODELS)}")
    return parse_model_config(config, known[0])


def build_model(config: ModelConfig, weights: WeightLoader) -> Model:
    """The model with its weights. Raises CheckpointError."""
    return MODELS[config.architecture](config, weights)
