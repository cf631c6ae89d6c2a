"""The architectures that the worker serves, by their names in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import CheckpointError, NotOfFamily
from ..layers.rotary import frequencies
from ..loading.weights import WeightLoader
from .borrowed.config import BorrowedConfig, read_borrowed
from .config import ModelConfig
from .config_json import ConfigJson, check_values, wrong
from .families import (
    gemma2,
    gemma3,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
)
from .families.vision import idefics3
from .interface import Model
from .rope_json import check_rotary, rope_parameters

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
    "MistralForCausalLM": Family(mistral.read, llama.build),
    "MixtralForCausalLM": Family(mixtral.read, mixtral.build),
    "Olmo2ForCausalLM": Family(olmo2.read, olmo2.build),
    "Phi3ForCausalLM": Family(phi3.read, phi3.build),
    "Qwen2ForCausalLM": Family(qwen2.read, qwen2.build),
    "Qwen3ForCausalLM": Family(qwen3.read, qwen3.build),
    "Qwen3MoeForCausalLM": Family(qwen3_moe.read, qwen3_moe.build),
    "Qwen3NextForCausalLM": Family(qwen3_5_moe.read_next, qwen3_5_moe.build_next),
    "Qwen3_5ForCausalLM": Family(qwen3_5.read, qwen3_5.build),
    "Qwen3_5ForConditionalGeneration": Family(qwen3_5.read, qwen3_5.build),
    "Qwen3_5MoeForCausalLM": Family(qwen3_5_moe.read, qwen3_5_moe.build),
    "Qwen3_5MoeForConditionalGeneration": Family(qwen3_5_moe.read, qwen3_5_moe.build),
    "SmolVLMForConditionalGeneration": Family(idefics3.read, idefics3.build),
}


def read_architecture(
    config: Mapping[str, Any], max_context: int | None = None, code: str = "auto", cache_dir: Path | None = None
) -> ModelConfig:
    """The configuration of an architecture, for sequences of up to `max_context` tokens if that is given. `code`:
    `WorkerOptions.model_code`. What is found out about transformers' code is kept in `cache_dir`.

    A value that only transformers' code supports is left to it. Raises CheckpointError for an unknown architecture,
    naming the known ones, and for values that are not supported.
    """
    names = _architectures(config)
    check_values(config)
    check_rotary(rope_parameters(ConfigJson(config)))
    known = [name for name in names if name in FAMILIES]
    if code == "own" and not known:
        raise CheckpointError(
            f"config.json: architecture {', '.join(names)} is not supported with --model-code own; known: "
            f"{', '.join(FAMILIES)}"
        )
    if code == "transformers" or not known:
        return _borrowed(config, names, cache_dir).serving(max_context)
    family, name = FAMILIES[known[0]], known[0]
    try:
        model: ModelConfig = family.read(ConfigJson({**config, "architecture": name})).serving(max_context)
    except NotOfFamily as error:
        if code == "own":
            raise
        try:
            return _borrowed(config, [name], cache_dir).serving(max_context)
        except CheckpointError:
            raise error from None
    for rope in model.distinct_ropes:
        frequencies(rope)  # raises if its parameters make no sense
    return model


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise wrong("architectures", "a list of names", names)
    return [_with_head(name) for name in names]


def _with_head(name: str) -> str:
    """The name of a family, where a checkpoint for embeddings names its model alone (MistralModel)."""
    whole = f"{name.removesuffix('Model')}ForCausalLM"
    return whole if name.endswith("Model") and whole in FAMILIES else name


def _borrowed(config: Mapping[str, Any], names: list[str], cache_dir: Path | None) -> BorrowedConfig:
    """By transformers' code. Raises CheckpointError."""
    try:
        return read_borrowed(config, names[0], cache_dir)
    except CheckpointError as error:
        if not config.get("auto_map"):
            raise
        raise CheckpointError(f"{error}; the code in the checkpoint (auto_map) is never run") from None


def build_model(config: ModelConfig, weights: WeightLoader) -> Model:
    """The model with its weights. Raises CheckpointError."""
    if isinstance(config, BorrowedConfig):
        from .borrowed.model import build

        return build(config, weights)
    model: Model = FAMILIES[config.architecture].build(config, weights)
    return model
