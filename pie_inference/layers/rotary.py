"""Rotary position embeddings, with the context extensions that checkpoints use.

Frequencies follow Hugging Face's `modeling_rope_utils`, because checkpoints are made for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..ops.interface import Rotation

Parameters = Mapping[str, Any]

BY_LENGTH = ("dynamic", "longrope")
"""Types of rotation that were made to change with the length of the text."""


@dataclass(frozen=True)
class RopeConfig:
    """The rotation of a layer. `parameters` are those of Hugging Face's `rope_parameters` or `rope_scaling`."""

    type: str
    theta: float
    dim: int  # number of leading dimensions of a head that are rotated
    context: int  # number of positions that are served
    parameters: Parameters

    @property
    def follows_length(self) -> bool:
        """Whether the checkpoint means a rotation that depends on the length of the text: NTK-aware scaling and
        LongRoPE do, beyond the positions that the model was trained for."""
        return self.type in BY_LENGTH and self.context > self.parameters["original_max_position_embeddings"]


@dataclass(frozen=True)
class Frequencies:
    """The angle per position of each pair of dimensions, float32 [dim / 2], and a factor on cosine and sine."""

    inverse: Tensor
    scale: float = 1.0


def _inverse(theta: float, dim: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def _default(rope: RopeConfig) -> Frequencies:
    return Frequencies(_inverse(rope.theta, rope.dim))


def _linear(rope: RopeConfig) -> Frequencies:
    return Frequencies(_inverse(rope.theta, rope.dim) / rope.parameters["factor"])


def _dynamic(rope: RopeConfig) -> Frequencies:
    """NTK-aware scaling: a larger base for a longer context. It follows the served context, not the longest sequence in
    a batch, so that the result of a sequence does not depend on what else runs."""
    factor, trained = rope.parameters["factor"], rope.parameters["original_max_position_embeddings"]
    stretch = factor * max(rope.context, trained) / trained - (factor - 1)
    return Frequencies(_inverse(rope.theta * stretch ** (rope.dim / (rope.dim - 2)), rope.dim))


def _longrope(rope: RopeConfig) -> Frequencies:
    """LongRoPE (Ding et al. 2024): factors for each dimension that were found by search, one set for texts within the
    trained context and one for longer texts. The served context decides which set all positions use."""
    trained = rope.parameters["original_max_position_embeddings"]
    factors = torch.tensor(rope.parameters["long_factor" if rope.context > trained else "short_factor"])
    inverse = _inverse(rope.theta, rope.dim)
    if factors.shape != inverse.shape:
        raise CheckpointError(f"config.json: long_factor and short_factor must have {len(inverse)} numbers each")
    return Frequencies(inverse / factors, _longrope_scale(rope.parameters, trained))


def _longrope_scale(parameters: Parameters, trained: int) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    factor = parameters["factor"]
    return math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0


def _llama3(rope: RopeConfig) -> Frequencies:
    """Llama 3.1: long waves are stretched, short ones are kept, with a smooth transition between them."""
    inverse, parameters = _inverse(rope.theta, rope.dim), rope.parameters
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * inverse / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return Frequencies((1 - smooth) * inverse / parameters["factor"] + smooth * inverse)


def _yarn(rope: RopeConfig) -> Frequencies:
    """YaRN (Peng et al. 2023): interpolates slow dimensions, keeps fast ones, and scales attention."""
    dim, parameters = rope.dim, rope.parameters
    inverse = _inverse(rope.theta, dim)
    low, high = (_yarn_dimension(rope, turns) for turns in _yarn_turns(parameters))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return Frequencies(inverse / parameters["factor"] * ramp + inverse * (1 - ramp), _yarn_scale(parameters))


def _yarn_turns(parameters: Parameters) -> tuple[float, float]:
    return parameters.get("beta_fast") or 32.0, parameters.get("beta_slow") or 1.0


def _yarn_dimension(rope: RopeConfig, turns: float) -> float:
    """The dimension whose wave makes `turns` turns within the original context."""
    original = rope.parameters["original_max_position_embeddings"]
    return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_scale(parameters: Parameters) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    mscale, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and all_dims:
        return _yarn_mscale(parameters["factor"], mscale) / _yarn_mscale(parameters["factor"], all_dims)
    return _yarn_mscale(parameters["factor"], 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


ROPE_TYPES: Mapping[str, Callable[[RopeConfig], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "longrope": _longrope,
    "llama3": _llama3,
    "yarn": _yarn,
}


def frequencies(rope: RopeConfig) -> Frequencies:
    """The frequencies of a rotation. Raises CheckpointError if parameters of its type are missing or wrong."""
    try:
        return ROPE_TYPES[rope.type](rope)
    except KeyError as error:
        raise CheckpointError(f"config.json: rope type {rope.type!r} needs {error}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(f"config.json: rope type {rope.type!r} cannot use its parameters: {error}") from None


class Rotary:
    """Makes the rotation of each batch. A table of all positions would cost more than it saves."""

    def __init__(self, rope: RopeConfig, device: torch.device) -> None:
        found = frequencies(rope)
        self._inverse = found.inverse.to(device)
        self._scale = found.scale

    def at(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation for positions int64 [T]."""
        return rotation(self._inverse, positions, dtype, self._scale)

    def by(self, distances: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation that takes keys to positions that are further by int64 [T]. It leaves their length as it is."""
        return rotation(self._inverse, distances, dtype)


def rotation(inverse: Tensor, positions: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Rotation:
    """The rotation by frequencies `inverse` for positions int64 [T]."""
    angles = positions[:, None, None].to(torch.promote_types(dtype, torch.float32)) * inverse
    cos, sin = angles.cos(), angles.sin()
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    return Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
