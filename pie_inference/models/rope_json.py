"""Rotary positions and the context that they allow, as the dialects of config.json write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CheckpointError
from ..layers.rotary import ROPE_TYPES, RopeConfig
from .config_json import ConfigJson

OLD_NAMES = {"su": "longrope"}
STRETCHABLE = ("linear", "dynamic")


@dataclass(frozen=True)
class Context:
    """How many tokens a sequence may have: as it is served, and at most, should the operator ask for more."""

    served: int
    longest: int

    def limited_to(self, wanted: int | None) -> Context:
        """With `wanted` tokens, if there are as many."""
        return self if wanted is None else replace(self, served=min(wanted, self.longest))


def rope_parameters(config: ConfigJson, layer_type: str = "full_attention") -> dict[str, Any]:
    """`rope_parameters` (transformers 5, perhaps one for each layer type) or `rope_theta`, `rope_scaling` (before)."""
    section = config.section("rope_parameters") or config.section("rope_scaling")
    parameters = {**(section.get(layer_type) or section)}
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    parameters["rope_type"] = OLD_NAMES.get(kind, kind)
    parameters.setdefault("rope_theta", config.number("rope_theta", 10000.0))
    parameters.setdefault("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    original = config.get("original_max_position_embeddings")  # beside, in Phi-3: then it comes first
    known = parameters.get("original_max_position_embeddings")
    parameters["original_max_position_embeddings"] = original or known or max_positions(config)
    return parameters


def max_positions(config: ConfigJson) -> int:
    """The number of positions that the checkpoint names."""
    return config.whole("max_position_embeddings", 2048)


def read_context(config: ConfigJson) -> Context:
    """Long factors of LongRoPE harm short texts, so they are used only if the operator asks for a long context."""
    parameters, positions = rope_parameters(config), max_positions(config)
    kind, original = parameters["rope_type"], parameters["original_max_position_embeddings"]
    if kind == "longrope":
        return Context(min(original, positions), positions)
    if kind == "yarn":  # added by users to a config.json that otherwise stays as it was
        positions = max(positions, round(original * _factor(parameters)))
    stretch = _factor(parameters) if kind in STRETCHABLE else 1.0
    return Context(positions, round(positions * stretch))


def read_rope(config: ConfigJson, head_dim: int, layer_type: str = "full_attention") -> RopeConfig:
    """The rotation of layers of a type. Raises CheckpointError naming a type that is unknown."""
    parameters = rope_parameters(config, layer_type)
    if parameters["rope_type"] not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise CheckpointError(f"config.json: rope type {parameters['rope_type']!r} is not supported, only {known}")
    if parameters["rope_type"] == "longrope":
        parameters.setdefault("factor", max_positions(config) / parameters["original_max_position_embeddings"])
    return RopeConfig(
        type=parameters["rope_type"],
        theta=float(parameters["rope_theta"]),
        dim=int(head_dim * (parameters["partial_rotary_factor"] or 1.0)),
        context=read_context(config).served,
        parameters=parameters,
    )


def _factor(parameters: Mapping[str, Any]) -> float:
    factor = parameters.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor < 1:
        kind = parameters["rope_type"]
        raise CheckpointError(f"config.json: rope type {kind!r} needs a 'factor' of at least 1, not {factor!r}")
    return float(factor)
