"""Linear layers by the kernels of `linear.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .library import ADDRESS, INTEGER, Library

UNIT = 16
"""Outputs that are packed together."""
NARROW = "narrow"
"""The form of weights in bfloat16 whose rows are float32."""


class _LinearLayer(ctypes.Structure):
    """The struct of the same name in linear.cpp."""

    _fields_ = [
        *((name, ADDRESS) for name in ("weights", "scales", "taken", "factors", "bias", "codes")),
        *((name, INTEGER) for name in ("outs", "ins", "group", "scale_type", "zeros")),
    ]


class CpuLinear:
    """A layer with packed weights; it is a `Groupable`."""

    def __init__(
        self,
        library: Library,
        form: str,
        weights: Tensor,
        shape: tuple[int, int],
        bias: Tensor | None,
        *,
        padding: int,
        scales: Tensor | None = None,
        taken: Tensor | None = None,
        factors: Tensor | None = None,
        codes: Tensor | None = None,
        group: int = 0,
        scale_type: int = 0,
        zeros: bool = False,
    ) -> None:
        """`form` names the kernel; the tensors and the last three are as in linear.h, `shape` is [outs, ins], and rows
        are padded to a multiple of `padding`."""
        a, n = ADDRESS, INTEGER
        self._kernel = library.kernel(f"linear_{form}", a, a, n, n, a, n)
        self._kernel_of_all = library.kernel(f"linears_{form}", a, a, n, a, n, n, a, n)
        self._kind = (form, shape, padding, group)
        self._outs, self._ins = shape
        self._padding = -self._ins % padding
        self._alignment = min(padding, 2)
        self._kept = (weights, scales, taken, factors, bias, codes)  # the kernel has only their addresses
        addresses = (None if each is None else each.data_ptr() for each in self._kept)
        self._layer = _LinearLayer(*addresses, self._outs, self._ins + self._padding, group, scale_type, zeros)
        self._address = ctypes.addressof(self._layer)

    def __call__(self, rows: Tensor) -> Tensor:
        return self._product(self._kernel, rows, self._address)

    def grouped(self, layers: Sequence[Callable[[Tensor], Tensor]]) -> CpuLinears | None:
        """One product of these layers, if all are of this kind (`Groupable`)."""
        own = [layer for layer in layers if isinstance(layer, CpuLinear) and layer._kind == self._kind]
        return CpuLinears(own) if len(own) == len(layers) else None

    def _product(self, kernel: Callable[..., Any], rows: Tensor, *layers: int) -> Tensor:
        """Rows [..., ins] times what `layers` tells the kernel, as [..., outs]."""
        output = rows.new_empty(*rows.shape[:-1], self._outs)
        matrix = self._readable(rows)
        kernel(*layers, matrix.data_ptr(), matrix.stride(0), len(matrix), output.data_ptr(), torch.get_num_threads())
        return output

    def _readable(self, rows: Tensor) -> Tensor:
        """Rows [M, ins] as the kernel can read them."""
        matrix = rows if rows.dim() == 2 else rows.reshape(-1, self._ins)
        if self._padding:
            return F.pad(matrix, (0, self._padding))
        return matrix if matrix.stride(1) == 1 and matrix.stride(0) % self._alignment == 0 else matrix.contiguous()


class CpuLinears:
    """Layers of one kind, each with rows of its own; it is a `GroupedLinear`."""

    capturable = True

    def __init__(self, layers: Sequence[CpuLinear]) -> None:
        self._first, self._kept = layers[0], layers
        self._layers = (_LinearLayer * len(layers))(*(layer._layer for layer in layers))
        self._address = ctypes.addressof(self._layers)

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        first = self._first
        return first._product(first._kernel_of_all, rows, self._address, ends.data_ptr(), len(self._layers))
