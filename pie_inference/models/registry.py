"""The architectures that the worker serves, by their names in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import CheckpointError
from ..layers.rotary import frequencies
from ..loading.weights import WeightLoader
from .config import ModelConfig
from .config_json import ConfigJson
from .families import gemma2, gemma3, granite, llama, mistral, mixtral, olmo2, phi3, qwen2, qwen3, qwen3_moe
from .families.vision import idefics3
from .interface import Model

Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class Family(Generic[Config]):
    """How to serve an architecture."""

    read: Callable[[ConfigJson], Config]
    """Reads a config.json. Raises CheckpointError for values that the model does not support."""

    build: Callable[[Config, WeightLoader], Model]
    """Loads the weights. Raises CheckpointError."""


FAMILIES: Mapping[str, Family[Any]] = {
    "Gemma2ForCausalLM": Family(gemma2.read, gemma2.build),
    "Gemma3ForCausalLM": Family(gemma3.read, gemma3.build),
    "Gemma3ForConditionalGeneration": Family(gemma3.read, gemma3.build),
    "GraniteForCausalLM": Family(granite.read, granite.build),
    "Idefics3ForConditionalGeneration": Family(idefics3.read, idefics3.build),
    "LlamaForCausalLM": Family(llama.read, llama.build),
    "MistralForCausalLM": Family(mistral.read, mistral.build),
    "MixtralForCausalLM": Family(mixtral.read, mixtral.build),
    "Olmo2ForCausalLM": Family(olmo2.read, olmo2.build),
    "Phi3ForCausalLM": Family(phi3.read, phi3.build),
    "Qwen2ForCausalLM": Family(qwen2.read, qwen2.build),
    "Qwen3ForCausalLM": Family(qwen3.read, qwen3.build),
    "Qwen3MoeForCausalLM": Family(qwen3_moe.read, qwen3_moe.build),
    "SmolVLMForConditionalGeneration": Family(idefics3.read, idefics3.build),
}


def read_architecture(config: Mapping[str, Any], max_context: int | None = None) -> ModelConfig:
    """The configuration of a known architecture, for sequences of up to `max_context` tokens if that is given.

    Raises CheckpointError for an unknown architecture, naming the known ones, and for values that are not supported.
    """
    name = _known_architecture(config)
    _refuse_quantized(config)
    family = FAMILIES[name]
    model: ModelConfig = family.read(ConfigJson({**config, "architecture": name})).serving(max_context)
    for rope in model.distinct_ropes:
        frequencies(rope)  # raises if its parameters make no sense
    return model


def _known_architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise CheckpointError(f"config.json: architectures must be a list, not {names!r}")
    known = [name for name in names if isinstance(name, str) and name in FAMILIES]
    if not known:
        named = ", ".join(map(str, names)) or "none"
        raise CheckpointError(f"config.json: architecture {named} is not supported; known: {', '.join(FAMILIES)}")
    return str(known[0])


def _refuse_quantized(config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise CheckpointError(
            f"config.json: quantization_config: a checkpoint quantized with {method!r} is not supported; "
            "take the original checkpoint, and quantize it with --quantization while it is loaded"
        )


def build_model(config: ModelConfig, weights: WeightLoader) -> Model:
    """The model with its weights. Raises CheckpointError."""
    model: Model = FAMILIES[config.architecture].build(config, weights)
    return model
