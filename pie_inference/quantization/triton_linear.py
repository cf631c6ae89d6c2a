"""Quantized linear layers with Triton kernels, for GPUs. The kernels read weights in their 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..device import triton_support
from ..ops.interface import GroupedLinear, Linear
from .formats import QuantizedWeight, stack
from .names import Kind

OUTS, INS = 64, 64
LEAST_ROWS, MOST_ROWS = 16, 64  # rows of a block; a matrix unit needs at least 16
FEW_OUTS, FEW_INS = 32, 256
"""Where all rows fit the smallest block, a product only takes the time to read weights. So many blocks read large
pieces ahead: an H200 reads 4.3 TB/s only if 3 MB are on their way."""
AHEAD_INS, MOST_STAGES = 1024, 8
"""Inputs whose weights are read ahead then, and pieces at most."""
FP8_CAPABILITY = (8, 9)
"""Least compute capability at which Triton knows e4m3; other GPUs convert such weights to the model's format before
each product."""


def can_serve(device: torch.device, kind: Kind) -> bool:
    """Whether the kernels can be compiled for this device."""
    if device.type != "cuda" or triton_support.why_unavailable(device) is not None:
        return False
    return kind != "fp8" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


class TritonLinear:
    """A layer on the device of its weight; it is a `Groupable`."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, rows: Tensor) -> Tensor:
        matrix = rows.reshape(-1, self._weight.columns).contiguous()
        output = matrix.new_empty(len(matrix), self._weight.rows)
        if len(matrix):
            _launch(self._weight, self._bias, matrix, output)
        return output.view(*rows.shape[:-1], self._weight.rows)

    def grouped(self, layers: Sequence[Linear]) -> GroupedLinear | None:
        own = [layer for layer in layers if isinstance(layer, TritonLinear) and layer._bias is None]
        weights = [layer._weight for layer in own if layer._weight.is_like(self._weight)]
        if len(weights) != len(layers) or len({weight.rows for weight in weights}) > 1:
            return None
        return _TritonLinears(stack(weights), len(weights))


class _TritonLinears:
    """Layers whose weights are one below the other; a `GroupedLinear`."""

    capturable = True

    def __init__(self, weight: QuantizedWeight, count: int) -> None:
        self._weight, self._count = weight, count

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        matrix = rows.contiguous()
        output = matrix.new_empty(len(matrix), self._weight.rows // self._count)
        _launch(self._weight, None, matrix, output, ends)
        return output


def _launch(
    weight: QuantizedWeight, bias: Tensor | None, matrix: Tensor, output: Tensor, ends: Tensor | None = None
) -> None:
    """`ends`: where the rows of each layer end, whose weights are one below the other; None: there is one layer."""
    from .triton_kernels import multiply_bytes, multiply_floats_of_4_bits, multiply_nibbles

    count, outs = output.shape
    layers = 1 if ends is None else len(ends)
    block = min(MOST_ROWS, max(LEAST_ROWS, _power_of_two(-(-count // layers))))
    most_blocks = -(-count // block) if ends is None else count // block + min(count, layers)
    few = block == LEAST_ROWS and matrix.itemsize == 2
    tile_outs, most_ins = (FEW_OUTS, FEW_INS) if few else (OUTS, INS)
    group = weight.format.group or 0
    ins = min(most_ins, group or most_ins)
    grid = (-(-outs // tile_outs), most_blocks)
    sizes = (count, outs, weight.columns, layers)
    given, read = output if bias is None else bias, output if ends is None else ends
    shared = {"HAS_BIAS": bias is not None, "ROWS": block, "OUTS": tile_outs}
    shared["num_stages"] = min(MOST_STAGES, AHEAD_INS // ins) if few else 3 if matrix.itemsize == 2 else 2
    shared["LAYERS"] = 0 if ends is None else _power_of_two(layers)
    zeros = weight.scales if weight.zeros is None else weight.zeros
    if weight.format.kind == "int4":
        kind = 0 if weight.zeros is None else 2 if weight.zeros_taken else 1
        tensors = (matrix, read, weight.values, weight.scales, zeros, given, output)
        multiply_nibbles[grid](*tensors, *sizes, **shared, ZEROS=kind, GROUP=group, PAIRS=(group or ins) // 2)
    elif weight.format.kind == "fp4":
        scales, factors = weight.scales.view(torch.uint8), weight.row_factors
        multiply_floats_of_4_bits[grid](
            *(matrix, read, weight.values, scales, scales if factors is None else factors, given, output),
            *sizes,
            **shared,
            HAS_FACTORS=factors is not None,
            E8M0=weight.scales.dtype == torch.float8_e8m0fnu,
            GROUP=group,
            PAIRS=INS // 2,
        )
    else:
        multiply_bytes[grid](
            *(matrix, read, weight.values, weight.scales, zeros, given, output),
            *sizes,
            **shared,
            HAS_ZEROS=weight.zeros is not None,
            GROUP=group,
            INS=ins,
        )


def _power_of_two(number: int) -> int:
    """The least one that is not below `number`."""
    return 1 << (number - 1).bit_length()
