"""Rotary positions and the context that they allow, as the dialects of config.json write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CheckpointError
from ..layers.rotary import ROPE_TYPES, RopeConfig
from .config_json import ConfigJson, is_number

STRETCHABLE = ("linear", "dynamic")
FACTOR_LISTS = {"short_factor", "long_factor"}
NUMBERS = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
}


@dataclass(frozen=True)
class Context:
    """How many tokens a sequence may have: as it is served, and at most, should the operator ask for more."""

    served: int
    longest: int

    def limited_to(self, wanted: int | None) -> Context:
        """With `wanted` tokens, if there are as many."""
        return self if wanted is None else replace(self, served=min(wanted, self.longest))


def rope_parameters(config: ConfigJson) -> Mapping[str, Any]:
    """Of layers with full attention: `rope_parameters` (transformers 5, perhaps by layer type) or `rope_scaling`."""
    section = config.section("rope_parameters") or config.section("rope_scaling")
    return ConfigJson(section).section("full_attention") or section


def _complete(config: ConfigJson, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """With what other dialects write beside them."""
    defaults = {
        "rope_type": ConfigJson(parameters).text("type", "default"),
        "rope_theta": config.number("rope_theta", 10000.0),
        "partial_rotary_factor": config.number("partial_rotary_factor", 1.0),
        "original_max_position_embeddings": max_positions(config),
    }
    completed = {**defaults, **{key: value for key, value in parameters.items() if value is not None}}
    _check(completed)
    if "short_factor" in completed:  # early Phi-3 says "su" or even "yarn"
        completed["rope_type"] = "longrope"
    original = config.optional_whole("original_max_position_embeddings")  # where Phi-3 has both, this one counts
    return completed if original is None else {**completed, "original_max_position_embeddings": original}


def _check(parameters: Mapping[str, Any]) -> None:
    """Raises CheckpointError for what is no number or string where one belongs."""
    ConfigJson(parameters).text("rope_type")
    for key in NUMBERS & set(parameters):
        if not is_number(parameters[key], above=-1e-9 if key.startswith("mscale") else 0):
            raise CheckpointError(f"config.json: {key} of rotary positions must be a number, not {parameters[key]!r}")
    for key in FACTOR_LISTS & set(parameters):
        if not all(is_number(each, above=0) for each in ConfigJson(parameters).items(key)):
            raise CheckpointError(f"config.json: {key} of rotary positions must be numbers, not {parameters[key]!r}")


def max_positions(config: ConfigJson) -> int:
    """The number of positions that the checkpoint names."""
    return config.whole("max_position_embeddings", 2048)


def read_context(config: ConfigJson) -> Context:
    """Long factors of LongRoPE harm short texts, so they are used only if the operator asks for a long context."""
    parameters, positions = _complete(config, rope_parameters(config)), max_positions(config)
    kind, original = parameters["rope_type"], parameters["original_max_position_embeddings"]
    if kind == "longrope":
        return Context(min(original, positions), positions)
    if kind == "yarn":  # added by users to a config.json that otherwise stays as it was
        positions = max(positions, round(original * _factor(parameters)))
    stretch = _factor(parameters) if kind in STRETCHABLE else 1.0
    return Context(positions, round(positions * stretch))


def read_rope(config: ConfigJson, head_dim: int, parameters: Mapping[str, Any] | None = None) -> RopeConfig:
    """The rotation of layers with full attention, or that of other `parameters`. Raises CheckpointError naming a type
    that is unknown."""
    completed = _complete(config, rope_parameters(config) if parameters is None else parameters)
    kind = completed["rope_type"]
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"config.json: rope type {kind!r} is not supported, only {', '.join(ROPE_TYPES)}")
    if kind == "longrope":
        completed.setdefault("factor", max_positions(config) / completed["original_max_position_embeddings"])
    theta, dim = float(completed["rope_theta"]), int(head_dim * completed["partial_rotary_factor"])
    return RopeConfig(kind, theta, dim, read_context(config).served, completed)


def _factor(parameters: Mapping[str, Any]) -> float:
    factor = parameters.get("factor")
    if factor is None or factor < 1:
        kind = parameters["rope_type"]
        raise CheckpointError(f"config.json: rope type {kind!r} needs a 'factor' of at least 1, not {factor!r}")
    return float(factor)
