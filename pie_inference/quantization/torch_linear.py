"""Quantized linear layers with torch's own operations, for devices without a kernel of ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.interface import Linear
from .formats import QuantizedWeight, unpack_int4
from .names import FORMATS

FEW_ROWS = 8
"""Most rows for which torch's int8 product on CPUs is faster than dequantizing first."""
INT4_MULTIPLE = 16
"""torch's int4 products need a multiple of this many output features."""


def make_linear(weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """Makes a layer with this weight, on the weight's device."""
    on_cpu = weight.values.device.type == "cpu" and weight.format in FORMATS.values()
    if weight.format.kind == "int4" and on_cpu and weight.rows % INT4_MULTIPLE == 0:
        return _add_bias(_int4_on_cpu(weight), bias)
    if weight.format.kind == "int8" and on_cpu:
        return _int8_on_cpu(weight, bias)
    return lambda rows: F.linear(rows, weight.dequantize(rows.dtype), bias)


def _int8_on_cpu(weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    multiply, scales = torch.ops.aten._weight_int8pack_mm.default, weight.scales.view(-1)

    def linear(rows: Tensor) -> Tensor:
        if len(rows) > FEW_ROWS:
            return F.linear(rows, weight.dequantize(rows.dtype), bias)
        product: Tensor = multiply(rows, weight.values, scales)
        return product if bias is None else product.add_(bias)

    return linear


def _int4_on_cpu(weight: QuantizedWeight) -> Callable[[Tensor], Tensor]:
    assert weight.zeros is not None
    group = weight.format.group
    values = unpack_int4(weight.values).to(torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu.default(values, 1)
    scales_and_zeros = torch.stack((weight.scales, weight.zeros), -1).transpose(0, 1).contiguous()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu.default
    return lambda rows: multiply(rows, packed, group, scales_and_zeros)


def _add_bias(multiply: Linear, bias: Tensor | None) -> Linear:
    return multiply if bias is None else lambda rows: multiply(rows).add_(bias)
