"""What makes the linear layers of a quantized model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.interface import Linear
from . import torch_linear
from .formats import quantize
from .names import FORMATS, Format


@dataclass(frozen=True)
class Quantizer:
    """Makes quantized linear layers, one after the other, so that memory never holds more than one unquantized."""

    format: Format
    device: torch.device
    dtype: torch.dtype

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """As `Ops.linear`, with the weights quantized. Input features must be a multiple of the format's group."""
        return torch_linear.make_linear(quantize(parts, self.format, self.dtype, self.device), bias)


def choose_quantizer(name: str, device: torch.device, dtype: torch.dtype) -> Quantizer | None:
    """`name` is of `config.QUANTIZATIONS`; None: weights are served as they are."""
    return None if name == "none" else Quantizer(FORMATS[name], device, dtype)
