"""Random weights in the forms that we quantize to, and in those that only checkpoints have."""

from __future__ import annotations

import torch

from pie_inference.quantization.formats import QuantizedWeight, pack_int4, quantize
from pie_inference.quantization.names import FORMATS, Format, Kind

FP4 = {"mxfp4": (32, torch.float8_e8m0fnu), "nvfp4": (16, torch.float8_e4m3fn)}
"""Groups and the dtypes of scales."""
INTEGERS = {
    "4 bits by rows": (4, None),
    "4 bits in groups": (4, 32),
    "8 bits by rows": (8, None),
    "8 bits in groups": (8, 128),
}
"""Bits and groups, with zeros that are taken."""
FP8 = "fp8 in groups"
KINDS = (*FORMATS, *FP4, *INTEGERS, FP8)


def random_weight(name: str, outs: int, ins: int, dtype: torch.dtype) -> QuantizedWeight:
    """A weight [outs, ins] of one of the `KINDS`, for a model in `dtype`, on the CPU."""
    if name in FP4:
        return random_fp4(name, outs, ins)
    if name in INTEGERS:
        return random_integers(*INTEGERS[name], outs, ins)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outs, ins, generator=generator)
    if name in FORMATS:
        return quantize([weight], FORMATS[name], dtype, torch.device("cpu"))
    scales = torch.rand(1, ins // 128, generator=generator).expand(outs, -1) + 0.1
    return QuantizedWeight(Format(FP8, "fp8", 128), weight.to(torch.float8_e4m3fn), scales.contiguous(), None)


def random_fp4(kind: str, rows: int, columns: int) -> QuantizedWeight:
    """A weight [rows, columns] of numbers of 4 bits; those of NVFP4 have a factor for each row."""
    generator = torch.Generator().manual_seed(0)
    group, dtype = FP4[kind]
    values = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    scales = torch.exp2(torch.rand(rows, columns // group, generator=generator) * 8 - 10).to(dtype)
    factors = torch.rand(rows, 1, generator=generator) + 0.5 if kind == "nvfp4" else None
    return QuantizedWeight(Format(kind, "fp4", group), values, scales, None, factors=factors, factors_divide=True)


def random_integers(bits: int, group: int | None, rows: int, columns: int) -> QuantizedWeight:
    """A weight [rows, columns] of integers of 4 or 8 bits, from which zeros are taken."""
    generator = torch.Generator().manual_seed(0)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    values = torch.randint(low, high, (rows, columns), generator=generator)
    scales = torch.rand(rows, columns // (group or columns), generator=generator) + 0.5
    zeros = torch.randint(low, high, scales.shape, generator=generator).to(torch.int8)
    stored = pack_int4(values.to(torch.uint8)) if bits == 4 else values.to(torch.int8)
    kind: Kind = "int4" if bits == 4 else "int8"
    return QuantizedWeight(Format(kind, kind, group), stored, scales, zeros, True)


def all_fp4(kind: str) -> QuantizedWeight:
    """A weight [256, 32] that has each number of 4 bits with each scale that keeps it exact in float32."""
    group, dtype = FP4[kind]
    scales = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    exact = torch.isfinite(scales) & (scales.abs() < 2.0**120) & (scales.abs() > 2.0**-120)
    of_groups = torch.where(exact, scales, 1).view(-1, 1).repeat(1, 32 // group).to(dtype)
    numbers = torch.arange(16, dtype=torch.uint8).repeat(256, 2)
    return QuantizedWeight(Format(kind, "fp4", group), pack_int4(numbers), of_groups, None)
