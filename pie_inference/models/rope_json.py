"""Reads rotary positions, and the context that they allow, from the dialects of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CheckpointError
from ..layers.rotary import ROPE_TYPES, RopeConfig
from .config_json import ConfigJson, is_number, wrong

KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers that may have rotations of their own."""
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
    """The most tokens of a sequence: as `served`, and the `longest` that the operator may ask for."""

    served: int
    longest: int

    def limited_to(self, wanted: int | None) -> Context:
        """The context with `wanted` tokens, or `longest` if that is fewer; None: unchanged."""
        return self if wanted is None else replace(self, served=min(wanted, self.longest))


def rope_parameters(config: ConfigJson) -> Mapping[str, Any]:
    """The parameters of layers with full attention, from `rope_parameters` (transformers 5, perhaps by layer type) or
    `rope_scaling`."""
    section = config.section("rope_parameters") or config.section("rope_scaling")
    return ConfigJson(section).section("full_attention") or section


def check_dialects(config: ConfigJson, *, by_layer: bool) -> None:
    """Raises CheckpointError if `rope_parameters` and `rope_scaling` say different things: transformers would take
    `rope_scaling` alone, without the base that is in the other one. It would not heed keys of `rope_parameters` beside
    those of kinds of layers either, if the model tells these apart (`by_layer`), and else these."""
    given = config.section("rope_parameters").keys()
    for key in sorted(given - KINDS if by_layer else given & KINDS):
        where = f"move it into {' and '.join(sorted(KINDS))}" if by_layer else "move what it has one level up"
        raise CheckpointError(f"config.json: rope_parameters has {key!r}, which this architecture ignores: {where}")
    new, old = rope_parameters(config), config.section("rope_scaling")
    base = {"rope_theta": config.get("rope_theta")}
    if old and {**base, **new} != {**base, **old}:
        raise CheckpointError("config.json: rope_parameters and rope_scaling contradict each other: keep one of them")


def _complete(config: ConfigJson, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the parameters that other dialects write elsewhere in config.json."""
    defaults = {
        "rope_type": ConfigJson(parameters).text("type", "default"),
        "rope_theta": config.number("rope_theta", 10000.0),
        "partial_rotary_factor": config.number("partial_rotary_factor", 1.0),
        "original_max_position_embeddings": max_positions(config),
    }
    completed = {**defaults, **{key: value for key, value in parameters.items() if value is not None}}
    check_rotary(completed)
    if "short_factor" in completed:  # early Phi-3 says "su" or even "yarn"
        completed["rope_type"] = "longrope"
    original = config.optional_whole("original_max_position_embeddings")  # if Phi-3 has both, this one counts
    if completed["rope_type"] == "dynamic":  # as in transformers
        original = max_positions(config)
    return completed if original is None else {**completed, "original_max_position_embeddings": original}


def check_rotary(parameters: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a parameter that is not a number or a string as it should be."""
    parameters = {key: value for key, value in parameters.items() if value is not None}
    for key in ("rope_type", "type"):
        ConfigJson(parameters).text(key, "default")
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
    """The context of a model. LongRoPE's long factors harm short texts, so a long context is served only on request."""
    parameters, positions = _complete(config, rope_parameters(config)), max_positions(config)
    kind, original = parameters["rope_type"], parameters["original_max_position_embeddings"]
    if kind == "longrope":
        return Context(min(original, positions), positions)
    if kind == "yarn":  # users add this to a config.json and change nothing else in it
        positions = max(positions, round(original * _factor(parameters)))
    stretch = _factor(parameters) if kind in STRETCHABLE else 1.0
    return Context(positions, round(positions * stretch))


def read_rope(
    config: ConfigJson, head_dim: int, parameters: Mapping[str, Any] | None = None, *, partly: bool = False
) -> RopeConfig:
    """The rotation of layers with full attention, or with other `parameters`. `partly`: whether a head may be rotated
    in part. Raises CheckpointError for what is not supported; it names the type, if that is unknown."""
    completed = _complete(config, rope_parameters(config) if parameters is None else parameters)
    kind = completed["rope_type"]
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"config.json: rope type {kind!r} is not supported, only {', '.join(ROPE_TYPES)}")
    if kind == "longrope":
        completed.setdefault("factor", max_positions(config) / completed["original_max_position_embeddings"])
    theta, part = float(completed["rope_theta"]), completed["partial_rotary_factor"]
    if part != 1 and not partly:  # transformers would rotate all of it
        raise CheckpointError(f"config.json: partial_rotary_factor {part!r} is not supported by this architecture")
    if part > 1:
        raise CheckpointError(f"config.json: partial_rotary_factor must be at most 1, not {part!r}")
    dim = int(head_dim * part)
    if dim % 2:
        raise wrong("head_dim", f"even, also times partial_rotary_factor, which is {part:g}", head_dim)
    return RopeConfig(kind, theta, dim, read_context(config).served, completed)


def _factor(parameters: Mapping[str, Any]) -> float:
    factor = parameters.get("factor")
    if factor is None or factor < 1:
        kind = parameters["rope_type"]
        raise CheckpointError(f"config.json: rope type {kind!r} needs a 'factor' of at least 1, not {factor!r}")
    return float(factor)
