"""Quantized linear layers with Triton kernels, for GPUs. The kernels read weights in their 4 or 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..device import triton_support
from ..ops.interface import Linear
from .formats import QuantizedWeight
from .names import Kind

OUTS, INS = 64, 64
LEAST_ROWS, MOST_ROWS = 16, 64  # rows of a block; a matrix unit needs at least 16
FP8_CAPABILITY = (8, 9)
"""Least compute capability at which Triton knows e4m3; other GPUs convert such weights to the model's format before
each product."""


def can_serve(device: torch.device, kind: Kind) -> bool:
    """Whether the kernels can be compiled for this device."""
    if device.type != "cuda" or triton_support.why_unavailable(device) is not None:
        return False
    return kind != "fp8" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def make_linear(weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """Makes a layer with this weight, on the weight's device."""

    def linear(rows: Tensor) -> Tensor:
        matrix = rows.reshape(-1, weight.columns).contiguous()
        output = matrix.new_empty(len(matrix), weight.rows)
        if len(matrix):
            _launch(weight, bias, matrix, output)
        return output.view(*rows.shape[:-1], weight.rows)

    return linear


def _launch(weight: QuantizedWeight, bias: Tensor | None, matrix: Tensor, output: Tensor) -> None:
    from .triton_kernels import multiply_bytes, multiply_floats_of_4_bits, multiply_nibbles

    count, sizes = len(matrix), (len(matrix), weight.rows, weight.columns)
    block = min(MOST_ROWS, max(LEAST_ROWS, 1 << (count - 1).bit_length()))
    grid = (-(-weight.rows // OUTS), -(-count // block))
    given = output if bias is None else bias
    shared = {"HAS_BIAS": bias is not None, "ROWS": block, "OUTS": OUTS}
    group = weight.format.group or 0
    zeros = weight.scales if weight.zeros is None else weight.zeros
    if weight.format.kind == "int4":
        kind = 0 if weight.zeros is None else 2 if weight.zeros_taken else 1
        tensors = (matrix, weight.values, weight.scales, zeros, given, output)
        multiply_nibbles[grid](*tensors, *sizes, **shared, ZEROS=kind, GROUP=group, PAIRS=(group or INS) // 2)
    elif weight.format.kind == "fp4":
        scales, factors = weight.scales.view(torch.uint8), weight.row_factors
        multiply_floats_of_4_bits[grid](
            *(matrix, weight.values, scales, scales if factors is None else factors, given, output),
            *sizes,
            **shared,
            HAS_FACTORS=factors is not None,
            E8M0=weight.scales.dtype == torch.float8_e8m0fnu,
            GROUP=group,
            PAIRS=INS // 2,
        )
    else:
        multiply_bytes[grid](
            *(matrix, weight.values, weight.scales, zeros, given, output),
            *sizes,
            **shared,
            HAS_ZEROS=weight.zeros is not None,
            GROUP=group,
            INS=min(INS, group or INS),
        )
