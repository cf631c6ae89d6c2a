"""Quantized linear layers with the kernels of `cpu_kernels/linear.cpp`, for bfloat16 models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cpu_kernels.library import Library
from ..cpu_kernels.linear import UNIT, CpuLinear
from ..device.host_memory import lazy_zero_bytes
from ..ops.interface import Linear
from .formats import QuantizedWeight

ALL_INT8 = "all_int8"
PADDING = 8
"""The kernels take a multiple of so many features."""


def can_serve(library: Library | None, dtype: torch.dtype) -> bool:
    """Whether this machine has what the kernels need."""
    return library is not None and dtype == torch.bfloat16


def make_linear(library: Library, weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """Makes a layer with this weight; `bias` is in bfloat16."""
    form, group, padding = _form(weight), weight.format.group, PADDING
    if group is not None and weight.columns % group:
        padding = group
    in_rows = weight.scales.dtype == torch.bfloat16 and weight.zeros is None and form != ALL_INT8
    if group is None and not in_rows:
        group = weight.columns + -weight.columns % padding
    return CpuLinear(
        library,
        form,
        _pack(weight, padding),
        (weight.rows, weight.columns),
        bias,
        padding=padding,
        scales=_pack_scales(weight, group),
        taken=_pack_groups([weight.zeros]) if weight.zeros is not None and weight.zeros_taken else None,
        codes=_CODES.get(form),
        group=group or 0,
        scale_type=_SCALE_TYPES[weight.scales.dtype],
        zeros=weight.zeros is not None and not weight.zeros_taken,
        factors=_pack_factors(weight),
    )


def _form(weight: QuantizedWeight) -> str:
    """The kernel: the one for int8 knows magnitudes of up to 127, so weights with -128 have another."""
    kind = weight.format.kind
    return ALL_INT8 if kind == "int8" and bool((weight.values == -128).any()) else kind


_SCALE_TYPES = {
    torch.bfloat16: 0,
    torch.float16: 1,
    torch.float32: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e8m0fnu: 4,
}
"""`ScaleType` of linear.h."""


def _pack(weight: QuantizedWeight, padding: int) -> Tensor:
    """The weight as units [units, features, UNIT], of 4 bits [units, features / 8, UNIT, 4 bytes]; in huge pages."""
    values = weight.values.view(torch.uint8)
    if weight.format.per_byte == 2:
        values = F.pad(values, (0, -values.shape[1] % (padding // 2), 0, -weight.rows % UNIT))
        units = _words_of_nibbles(values).view(-1, UNIT, values.shape[1] // 4, 4).transpose(1, 2)
    else:
        if _form(weight) == ALL_INT8:  # as signs and magnitudes: -1 is the first number below 0
            values = values ^ torch.where(values > 127, 127, 0).to(torch.uint8)
        values = F.pad(values, (0, -values.shape[1] % padding, 0, -weight.rows % UNIT))
        units = values.view(-1, UNIT, values.shape[1]).transpose(1, 2)
    memory = torch.from_numpy(lazy_zero_bytes(units.numel()))
    memory.view(units.shape).copy_(units)
    return memory


def _words_of_nibbles(values: Tensor) -> Tensor:
    """Bytes [N, K / 2] of two neighbours each as words of eight: in the lower half the even ones, in the upper half
    the odd ones, each the lowest bits first."""
    pairs = values.view(len(values), -1, 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    even, odd = (first & 15) | (second << 4), (first >> 4) | (second & 0xF0)
    return torch.cat((even, odd), -1)


def _pack_scales(weight: QuantizedWeight, group: int | None) -> Tensor:
    """Scales as bfloat16 [outputs]; in groups, [units, groups, scale and perhaps zero that is added, UNIT]."""
    if group is None:
        return F.pad(weight.scales.view(-1), (0, -weight.rows % UNIT))
    scales = weight.scales.view(torch.uint8) if weight.scales.itemsize == 1 else weight.scales
    return _pack_groups([scales] if weight.zeros is None or weight.zeros_taken else [scales, weight.zeros])


def _pack_groups(tensors: Sequence[Tensor]) -> Tensor:
    """Numbers [outputs, groups] of each tensor as [units, groups, tensors, UNIT]."""
    padded = F.pad(torch.stack(list(tensors), 1), (0, 0, 0, 0, 0, -len(tensors[0]) % UNIT))
    return padded.view(-1, UNIT, *padded.shape[1:]).permute(0, 3, 2, 1).contiguous()


def _pack_factors(weight: QuantizedWeight) -> Tensor | None:
    """Factors of rows as float32 [outputs], padded."""
    factors = weight.row_factors
    return None if factors is None else F.pad(factors.view(-1), (0, -weight.rows % UNIT))


_MAGNITUDES = torch.arange(128, dtype=torch.uint8)
_CODES = {
    "int8": _MAGNITUDES.to(torch.bfloat16),
    ALL_INT8: (_MAGNITUDES + 0.5).to(torch.bfloat16),
    "fp8": _MAGNITUDES.view(torch.float8_e4m3fn).to(torch.bfloat16),
}
"""The value of each magnitude; exact."""
