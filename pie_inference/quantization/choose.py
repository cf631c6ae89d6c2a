"""Chooses how to make the linear layers of a quantized model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cpu_kernels.library import Library
from ..ops.interface import Linear
from . import cpu_linear, torch_linear, triton_linear
from .formats import QuantizedWeight, quantize
from .names import FORMATS, HEAD_FORMAT, Format


@dataclass(frozen=True)
class Quantizer:
    """Makes quantized linear layers one after the other, so that memory never holds more than one unquantized layer."""

    format: Format
    device: torch.device
    dtype: torch.dtype
    library: Library | None  # the compiled kernels for CPUs, if they serve

    def for_head(self) -> Quantizer:
        """The quantizer of the output head."""
        return replace(self, format=HEAD_FORMAT)

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """Like `Ops.linear`, but quantizes the weights. Input features must be a multiple of the format's group."""
        return make_linear(quantize(parts, self.format, self.dtype, self.device), bias, self.library)


def make_linear(weight: QuantizedWeight, bias: Tensor | None, library: Library | None) -> Linear:
    """A layer with this weight, by the kernels of its device. `library`: the compiled ones for CPUs, if they serve."""
    if library is not None:
        return cpu_linear.make_linear(library, weight, bias)
    if triton_linear.can_serve(weight.values.device, weight.format.kind):
        return triton_linear.TritonLinear(weight, bias)
    return torch_linear.make_linear(weight, bias)


def library_for(library: Library | None, dtype: torch.dtype) -> Library | None:
    """The library, if its kernels serve quantized layers of a model in `dtype`."""
    return library if cpu_linear.can_serve(library, dtype) else None


def choose_quantizer(
    name: str, device: torch.device, dtype: torch.dtype, library: Library | None = None
) -> Quantizer | None:
    """The quantizer for `name`, one of `WorkerOptions.quantization`; None for "none": weights stay unquantized."""
    if name == "none":
        return None
    return Quantizer(FORMATS[name], device, dtype, library_for(library, dtype))
