"""The architectures that the worker serves, by the name in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import CheckpointError
from ..weights import WeightLoader
from . import llama, qwen2, qwen3
from .config import ModelConfig
from .config_json import ConfigJson
from .interface import Model

Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class Family(Generic[Config]):
    """How to serve an architecture."""

    read: Callable[[ConfigJson], Config]
    """Understands a config.json. Raises CheckpointError for what the model does not support."""

    build: Callable[[Config, WeightLoader], Model]
    """Loads the weights. Raises CheckpointError."""


FAMILIES: Mapping[str, Family[Any]] = {
    "LlamaForCausalLM": Family(llama.read, llama.build),
    "Qwen2ForCausalLM": Family(qwen2.read, qwen2.build),
    "Qwen3ForCausalLM": Family(qwen3.read, qwen3.build),
}


def read_architecture(config: Mapping[str, Any], max_context: int | None = None) -> ModelConfig:
    """The configuration of a known architecture; with `max_context`, for sequences of up to so many tokens.

    Raises CheckpointError for unknown ones, naming those that are known, and for what is not supported.
    """
    names = config.get("architectures") or []
    known = [name for name in names if name in FAMILIES]
    if not known:
        named = ", ".join(names) or "none"
        raise CheckpointError(f"config.json: architecture {named} is not supported; known: {', '.join(FAMILIES)}")
    model: ModelConfig = FAMILIES[known[0]].read(ConfigJson({**config, "architecture": known[0]}))
    return model.serving(max_context)


def build_model(config: ModelConfig, weights: WeightLoader) -> Model:
    """The model with its weights. Raises CheckpointError."""
    model: Model = FAMILIES[config.architecture].build(config, weights)
    return model
