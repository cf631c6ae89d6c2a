"""AWQ (Lin et al. 2024) as AutoAWQ stores it for its "gemm" kernels: words of integers along the output features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ....quantization.formats import QuantizedWeight
from ..scheme import (
    FLOATING,
    GROUPS,
    WORDS,
    Scheme,
    Settings,
    StoredWeight,
    Tensors,
    make_format,
    stored_integers,
    stored_zeros,
    unpack,
)

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word the eight outputs are."""


class Awq(Scheme):
    """A weight is (value - zero) * scale."""

    scales: Sequence[str] = (".scales",)
    endings: Mapping[str, int] = {".qweight": 8, ".qzeros": 0, ".scales": 0}

    def __init__(self, config: Settings) -> None:
        config.one_of("bits", [4])
        config.one_of("version", ["gemm", "GEMM"], "gemm")
        config.one_of("zero_point", [True], True)
        self._group: int = config.one_of("group_size", GROUPS, 128)
        self.name = f"AWQ, 4 bits in groups of {self._group}"

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        format = make_format("awq", "int4", self._group, columns, module)
        groups = columns // self._group
        scales = tensors.read(f"{module}.scales", (groups, rows), FLOATING)
        values = _unpack(tensors.read(f"{module}.qweight", (columns, rows // 8), WORDS))
        zeros = _unpack(tensors.read(f"{module}.qzeros", (groups, rows // 8), WORDS))
        integers, taken = stored_integers(values.t(), 4), stored_zeros(zeros.t(), 4)
        return StoredWeight(QuantizedWeight(format, integers, scales.t().contiguous(), taken, True))


def _unpack(words: Tensor) -> Tensor:
    """int32 [K, N / 8] to uint8 [K, N]."""
    values = unpack(words, 4, 1).view(len(words), -1, 8)
    return values[..., torch.tensor(PLACES)].flatten(1)
