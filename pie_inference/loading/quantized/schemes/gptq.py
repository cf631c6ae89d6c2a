"""GPTQ (Frantar et al. 2023) as AutoGPTQ and GPTQModel store it: words of integers along the input features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ....errors import CheckpointError
from ....quantization.formats import INT4_MIDDLE, QuantizedWeight
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


class Gptq(Scheme):
    """A weight is (value - zero) * scale; version 1 of the format stores zeros less 1."""

    scales: Sequence[str] = (".scales",)
    endings: Mapping[str, int]

    def __init__(self, config: Settings) -> None:
        self._bits: int = config.one_of("bits", [4, 8])
        group: int = config.one_of("group_size", [*GROUPS, -1], 128)
        self._group = None if group == -1 else group
        self._taken = 1 if config.one_of("checkpoint_format", ["gptq", "gptq_v2"], "gptq") == "gptq" else 0
        self.name = f"GPTQ, {self._bits} bits in groups of {group}"
        if group == -1:
            self.name = f"GPTQ, {self._bits} bits"
        self.endings = {".qweight": 32 // self._bits, ".qzeros": 0, ".scales": 0, ".g_idx": 0}

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        per_word = 32 // self._bits
        format = make_format("gptq", "int4" if self._bits == 4 else "int8", self._group, columns, module)
        groups = columns // (self._group or columns)
        scales = tensors.read(f"{module}.scales", (groups, rows), FLOATING)
        words = tensors.read(f"{module}.qweight", (columns // per_word, rows), WORDS)
        zeros = unpack(tensors.read(f"{module}.qzeros", (groups, -(-rows // per_word)), WORDS), self._bits, 1)[:, :rows]
        zeros = (zeros + self._taken) & (2**self._bits - 1)
        values = unpack(words, self._bits, 0).t()
        order = self._order(tensors, module, columns)
        if order is not None:
            values = values[:, order]
        integers, taken = stored_integers(values, self._bits), stored_zeros(zeros.t(), self._bits)
        plain = bool((taken == (INT4_MIDDLE if self._bits == 4 else 0)).all())  # as in all symmetric files
        weight = QuantizedWeight(format, integers, scales.t().contiguous(), None if plain else taken, not plain)
        return StoredWeight(weight, order)

    def _order(self, tensors: Tensors, module: str, columns: int) -> Tensor | None:
        """The input features by their groups, if these are not side by side (`desc_act`)."""
        name = f"{module}.g_idx"
        if self._group is None or name not in tensors:
            return None
        group_of = tensors.read(name, (columns,), WORDS)
        plain = torch.arange(columns, dtype=torch.int32) // self._group
        if torch.equal(group_of, plain):
            return None
        order = torch.argsort(group_of, stable=True)
        if not torch.equal(group_of[order], plain):
            raise CheckpointError(f"tensor {name!r}: the groups are not of {self._group} input features each")
        return order
