"""Reads weights of 4-bit floating-point numbers (e2m1), two in a byte, with scales of 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ....quantization.formats import QuantizedWeight
from ..scheme import StoredWeight, Tensors, make_format, scale_of_all

BYTES = ("U8",)
MX_GROUP = 32
MX_SCALES = ("U8", "F8_E8M0")
NV_GROUP = 16
NV_SCALES = ("F8_E4M3",)


def read_mxfp4(tensors: Tensors, values: str, scales: str, rows: int, columns: int) -> StoredWeight:
    """The tensors `values` [rows, columns / 2] and `scales` [rows, columns / 32]."""
    numbers = tensors.read(values, (rows, columns // 2), BYTES)
    powers = tensors.read(scales, (rows, columns // MX_GROUP), MX_SCALES)
    return mxfp4_weight(numbers, powers, columns, values)


def mxfp4_weight(numbers: Tensor, powers: Tensor, columns: int, module: str) -> StoredWeight:
    """A weight of bytes [N, columns / 2], with scales [N, columns / 32] of 8 bits. Raises CheckpointError if these do
    not divide the columns."""
    format = make_format("mxfp4", "fp4", MX_GROUP, columns, module)
    return StoredWeight(QuantizedWeight(format, numbers, powers.view(torch.float8_e8m0fnu), None))


def read_nvfp4(tensors: Tensors, names: tuple[str, str, str], rows: int, columns: int, *, divide: bool) -> StoredWeight:
    """The tensors of values [rows, columns / 2], scales [rows, columns / 16], and of the number by which scales are
    multiplied, or divided."""
    values, scales, factor = names
    format = make_format("nvfp4", "fp4", NV_GROUP, columns, values)
    numbers = tensors.read(values, (rows, columns // 2), BYTES)
    of_groups = tensors.read(scales, (rows, columns // NV_GROUP), NV_SCALES)
    factors = scale_of_all(tensors, factor, rows).float()
    return StoredWeight(QuantizedWeight(format, numbers, of_groups, None, factors=factors, factors_divide=divide))
