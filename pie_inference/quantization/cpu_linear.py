"""Quantized linear layers with the kernels of `cpu_kernels/quantized_linear.cpp`, for bfloat16 models."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cpu_kernels.build import cpu_flags
from ..cpu_kernels.library import ADDRESS, INTEGER, Library
from ..device.host_memory import lazy_zero_bytes
from ..ops.interface import Linear
from .formats import QuantizedWeight, unpack_int4

NEEDED_FLAGS = frozenset({"avx512_vnni", "avx512vbmi"})
"""Instruction sets that these kernels need beside those that all kernels need."""

BLOCKS, BLOCK, STEP = 4, 16, 4
PANEL = BLOCKS * BLOCK
"""The kernels' constants: outputs of a block and of a panel, inputs of a step."""

INT8_GROUP = 128
"""Inputs that share the scale of an activation. An int8 weight has one scale for the whole row."""


class _Arguments(ctypes.Structure):
    """The struct `Arguments` of the kernels."""

    _fields_ = [
        *((name, ADDRESS) for name in ("rows", "weights", "scales", "bias", "output", "bytes")),
        *((name, INTEGER) for name in ("count", "ins", "outs", "group", "threads")),
    ]


def can_serve(library: Library | None, dtype: torch.dtype) -> bool:
    """Whether this machine has what the kernels need."""
    return library is not None and dtype == torch.bfloat16 and cpu_flags() >= NEEDED_FLAGS


class CpuLinear:
    """A quantized layer; it is a `Linear`. It takes one call at a time."""

    def __init__(self, library: Library, weight: QuantizedWeight, bias: Tensor | None) -> None:
        self._kernel = library.kernel(f"quantized_linear_{weight.format.kind}", ADDRESS)
        self._kept = (_pack(weight), _pack_scales(weight), bias, _E4M3)  # the kernel has only their addresses
        values, scales, _, codes = self._kept
        self._arguments = _Arguments(
            weights=values.data_ptr(),
            scales=scales.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            bytes=codes.data_ptr(),
            ins=weight.columns,
            outs=weight.rows,
            group=weight.format.group or INT8_GROUP,
        )
        self._address = ctypes.addressof(self._arguments)

    def __call__(self, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        arguments = self._arguments
        output = rows.new_empty(*rows.shape[:-1], arguments.outs)
        arguments.rows, arguments.output = rows.data_ptr(), output.data_ptr()
        arguments.count, arguments.threads = rows.numel() // arguments.ins, torch.get_num_threads()
        self._kernel(self._address)
        return output


def make_linear(library: Library, weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """Makes a layer with this weight; `bias` is in bfloat16."""
    return CpuLinear(library, weight, bias)


def _pack(weight: QuantizedWeight) -> Tensor:
    """The weight's values as uint8 in the kernels' order, in huge pages."""
    if weight.format.kind == "int4":
        steps = _steps(unpack_int4(weight.values), weight.format.group or INT8_GROUP)
        packed = steps[:, 0::2] | (steps[:, 1::2] << 4)
    elif weight.format.kind == "int8":
        packed = _steps(weight.values.view(torch.uint8) ^ 128, INT8_GROUP)  # adds 128 to a signed number
    else:
        packed = _fp8_order(_steps(weight.values.view(torch.uint8), STEP))
    memory = torch.from_numpy(lazy_zero_bytes(packed.numel()))
    memory.view(packed.shape).copy_(packed)
    return memory


def _steps(values: Tensor, multiple: int) -> Tensor:
    """uint8 [N, K] to [panels, steps, blocks, outputs, inputs of a step], padded with zeros."""
    rows, columns = values.shape
    padded = F.pad(values, (0, -columns % multiple, 0, -rows % PANEL))
    return padded.view(-1, BLOCKS, BLOCK, padded.shape[1] // STEP, STEP).permute(0, 3, 1, 2, 4)


def _fp8_order(steps: Tensor) -> Tensor:
    """Reorders 16 outputs and 4 inputs: each quarter of the outputs with the first two inputs, then with the other
    two."""
    panels, count = steps.shape[:2]
    return steps.reshape(panels, count, BLOCKS, 4, 4, 2, 2).transpose(4, 5)


def _pack_scales(weight: QuantizedWeight) -> Tensor:
    """Scales, and zero points if there are any, as bfloat16 [panels * PANEL] or [panels, groups, scale and zero,
    PANEL]."""
    missing = -weight.rows % PANEL
    if weight.zeros is None:
        return F.pad(weight.scales.view(-1), (0, missing))
    both = torch.stack((weight.scales, weight.zeros), 1)
    panels = F.pad(both, (0, 0, 0, 0, 0, missing)).view(-1, PANEL, *both.shape[1:])
    return panels.permute(0, 3, 2, 1).contiguous()


_E4M3 = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.bfloat16)
"""The value of each magnitude of fp8; exact."""
