"""Rotary position embeddings, with the context extensions that checkpoints use.

Frequencies follow Hugging Face's `modeling_rope_utils`, which checkpoints are made for.
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


@dataclass(frozen=True)
class Frequencies:
    """Angle per position of each pair of dimensions, float32 [head_dim / 2], and a factor on cosine and sine."""

    inverse: Tensor
    scale: float = 1.0


def _default(theta: float, dim: int, _: Parameters) -> Frequencies:
    return Frequencies(1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))


def _linear(theta: float, dim: int, parameters: Parameters) -> Frequencies:
    return Frequencies(_default(theta, dim, parameters).inverse / parameters["factor"])


def _llama3(theta: float, dim: int, parameters: Parameters) -> Frequencies:
    """Llama 3.1: long waves are stretched, short ones kept, a smooth passage between."""
    inverse = _default(theta, dim, parameters).inverse
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * inverse / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return Frequencies((1 - smooth) * inverse / parameters["factor"] + smooth * inverse)


def _yarn(theta: float, dim: int, parameters: Parameters) -> Frequencies:
    """YaRN (Peng et al. 2023): interpolates slow dimensions, keeps fast ones, and scales attention."""
    inverse = _default(theta, dim, parameters).inverse
    low, high = (_yarn_dimension(theta, dim, parameters, turns) for turns in _yarn_turns(parameters))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return Frequencies(inverse / parameters["factor"] * ramp + inverse * (1 - ramp), _yarn_scale(parameters))


def _yarn_turns(parameters: Parameters) -> tuple[float, float]:
    return parameters.get("beta_fast") or 32.0, parameters.get("beta_slow") or 1.0


def _yarn_dimension(theta: float, dim: int, parameters: Parameters, turns: float) -> float:
    """The dimension whose wave turns so often within the original context."""
    original = parameters["original_max_position_embeddings"]
    return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _yarn_scale(parameters: Parameters) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    mscale, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and all_dims:
        return _yarn_mscale(parameters["factor"], mscale) / _yarn_mscale(parameters["factor"], all_dims)
    return _yarn_mscale(parameters["factor"], 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


ROPE_TYPES: Mapping[str, Callable[[float, int, Parameters], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


class Rotary:
    """Makes rotations. Angles are computed once per batch: a table of all positions would cost more than it saves."""

    def __init__(self, kind: str, theta: float, head_dim: int, parameters: Parameters, device: torch.device) -> None:
        try:
            frequencies = ROPE_TYPES[kind](theta, head_dim, parameters)
        except KeyError as error:
            raise CheckpointError(f"config.json: rope type {kind!r} needs {error}") from None
        self._inverse = frequencies.inverse.to(device)
        self._scale = frequencies.scale

    def at(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation for positions int64 [T]."""
        angles = positions[:, None, None].float() * self._inverse
        cos, sin = angles.cos(), angles.sin()
        if self._scale != 1.0:
            cos, sin = cos * self._scale, sin * self._scale
        return Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
