"""From weights to their quantized form and back, on any device.

int8: symmetric, one scale for each output feature. fp8: e4m3, one scale for each output feature. int4: a scale and a
zero point for each group of input features, weight = (value - 8) * scale + zero with values 0 to 15; this is the form
of torch's own int4 products. Scales are rounded to the model's dtype before values are chosen, so that every
implementation multiplies by the same weights.

fp4: numbers of 4 bits (e2m1) as checkpoints have them, with a scale of 8 bits for each group of input features, e8m0 in
MXFP4 (OCP Microscaling Formats 1.0, section 5.3), and in NVFP4 e4m3 beside a factor of the whole tensor. Nothing is
quantized to it here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .names import Format

CHUNK_BYTES = 64 << 20
"""Weights are quantized in pieces of about this size in float32, so that memory holds little more than the result."""

INT8_MAX = 127
INT4_MAX = 15
INT4_MIDDLE = 8
FP8_MAX = 448.0
SMALLEST_SCALE = 1e-8


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight [N, K] with G scales for each of its rows."""

    format: Format
    values: Tensor  # int8 or float8_e4m3fn [N, K]; of 4 bits uint8 [N, K / 2], with even input features in the low half
    scales: Tensor  # [N, G], floating-point; for fp4 float8_e8m0fnu or float8_e4m3fn
    zeros: Tensor | None  # [N, G], those that are added in the dtype of scales, those that are taken int8; None: 0
    zeros_taken: bool = False
    """What zeros are. False: they are added, weight = value * scale + zero, for int4 (value - 8) * scale + zero. True:
    they are taken from the value, weight = (value - zero) * scale."""
    factors: Tensor | None = None  # float32 [N, 1], by which the scales of a row are multiplied; None: 1
    factors_divide: bool = False
    """Whether scales are divided by the factors instead."""

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def columns(self) -> int:
        return self.values.shape[1] * self.format.per_byte

    @property
    def nbytes(self) -> int:
        tensors = (self.values, self.scales, self.zeros, self.factors)
        return sum(each.nbytes for each in tensors if each is not None)

    @property
    def row_factors(self) -> Tensor | None:
        """float32 [N, 1]: what sums of values times scales are multiplied by; None: 1."""
        return self.factors.reciprocal() if self.factors is not None and self.factors_divide else self.factors

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] that the values stand for, rounded to `dtype` once."""
        exact = torch.promote_types(dtype, torch.float32)
        if self.format.kind == "fp4":
            return (fp4_numbers(self.values).to(exact) * self._for_columns(self._exact_scales(exact))).to(dtype)
        values = unpack_int4(self.values) if self.format.kind == "int4" else self.values
        middle = INT4_MIDDLE if self.format.kind == "int4" and not self.zeros_taken else 0
        weight = values.to(exact) - middle if middle else values.to(exact)
        if self.zeros is not None and self.zeros_taken:
            weight -= self._for_columns(self.zeros)
        weight = weight * self._for_columns(self.scales)
        if self.zeros is not None and not self.zeros_taken:
            weight += self._for_columns(self.zeros)
        return weight.to(dtype)

    def _exact_scales(self, dtype: torch.dtype) -> Tensor:
        """Scales [N, G] with the factors of their rows."""
        scales = self.scales.to(dtype)
        if self.factors is None:
            return scales
        return scales / self.factors if self.factors_divide else scales * self.factors

    def _for_columns(self, numbers: Tensor) -> Tensor:
        """Numbers [N, G] as [N, K], or as [N, 1] if a row has one."""
        group = self.format.group
        return numbers if group is None else numbers.repeat_interleave(group, 1)[:, : self.columns]

    def is_like(self, other: QuantizedWeight) -> bool:
        """Whether both have the same form, so that they can be one product."""
        return self._form == other._form

    @property
    def _form(self) -> tuple[object, ...]:
        numbers = self.scales.dtype, self.zeros is None, self.factors is None
        return self.format, self.columns, *numbers, self.zeros_taken, self.factors_divide

    def narrowed(self, dim: int, first: int, count: int) -> QuantizedWeight:
        """Rows (`dim` 0) or columns (1) `first` to `first + count`. Columns must be whole groups."""
        if dim == 0:
            return self._with(lambda numbers, _: numbers.narrow(0, first, count))

        def narrow(numbers: Tensor, step: int | None) -> Tensor:
            return numbers if step is None else numbers.narrow(1, first // step, -(-count // step))

        return self._with(narrow)

    def _with(self, change: Callable[[Tensor, int | None], Tensor]) -> QuantizedWeight:
        """With each tensor changed; `change` is told how many columns a number in it is for; None: for all."""
        per_byte, group = self.format.per_byte, self.format.group
        return replace(
            self,
            values=change(self.values, per_byte),
            scales=change(self.scales, group),
            zeros=None if self.zeros is None else change(self.zeros, group),
            factors=None if self.factors is None else change(self.factors, None),
        )

    def to(self, device: torch.device) -> QuantizedWeight:
        """This weight on `device`."""
        return self._with(lambda numbers, _: numbers.to(device))


def stack(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """The rows of all parts, which are of one form, one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    zeros = None if first.zeros is None else torch.cat([part.zeros for part in parts if part.zeros is not None])
    factors = None if first.factors is None else torch.cat([part.factors for part in parts if part.factors is not None])
    values, scales = _joined([part.values for part in parts]), _joined([part.scales for part in parts])
    return replace(first, values=values, scales=scales, zeros=zeros, factors=factors)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Rows of any dtype, one after the other. Numbers of 8 bits are joined as bytes, which all devices can do."""
    kind = parts[0].dtype
    return torch.cat([part.view(torch.uint8 if kind.itemsize == 1 else kind) for part in parts]).view(kind)


def quantize(parts: Sequence[Tensor], format: Format, dtype: torch.dtype, device: torch.device) -> QuantizedWeight:
    """Quantizes weights [N_i, K] of any floating-point dtype, stacked, with scales in `dtype`. K must be a multiple of
    the format's group."""
    pieces = [
        _quantize(chunk.to(device, torch.float32), format, dtype)
        for part in parts
        for chunk in torch.split(part, _rows(part))
    ]
    values, scales, zeros = zip(*pieces, strict=True)
    return QuantizedWeight(format, torch.cat(values), torch.cat(scales), None if zeros[0] is None else torch.cat(zeros))


def _rows(part: Tensor) -> int:
    return max(1, CHUNK_BYTES // (4 * part.shape[1]))


def _quantize(weight: Tensor, format: Format, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    if format.kind == "int4":
        assert format.group is not None
        return _quantize_int4(weight, format.group, dtype)
    largest = FP8_MAX if format.kind == "fp8" else INT8_MAX
    scales = (weight.abs().amax(1, keepdim=True) / largest).clamp_(min=SMALLEST_SCALE).to(dtype)
    scaled = weight / scales.float()
    if format.kind == "fp8":
        return scaled.clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales, None
    return scaled.round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scales, None


def _quantize_int4(weight: Tensor, group: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    grouped = weight.view(len(weight), -1, group)
    lowest, highest = grouped.amin(-1), grouped.amax(-1)
    scales = ((highest - lowest) / INT4_MAX).clamp_(min=SMALLEST_SCALE).to(dtype)
    zeros = (lowest + scales.float() * INT4_MIDDLE).to(dtype)
    values = ((grouped - zeros.float()[..., None]) / scales.float()[..., None]).round_().add_(INT4_MIDDLE)
    return pack_int4(values.clamp_(0, INT4_MAX).to(torch.uint8).view(len(weight), -1)), scales, zeros


def pack_int4(values: Tensor) -> Tensor:
    """Packs uint8 [N, K], with values 0 to 15, into [N, K / 2]."""
    return values[:, 0::2] | (values[:, 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """Unpacks uint8 [N, K / 2] into [N, K], with values 0 to 15."""
    return torch.stack((packed & 15, packed >> 4), -1).view(len(packed), -1)


FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of e2m1 without their signs, by their lower three bits."""


def fp4_numbers(packed: Tensor) -> Tensor:
    """Unpacks numbers of 4 bits, uint8 [N, K / 2], into float32 [N, K]."""
    magnitudes = torch.tensor(FP4_MAGNITUDES, device=packed.device)
    return torch.cat((magnitudes, -magnitudes))[unpack_int4(packed).int()]
