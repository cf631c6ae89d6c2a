"""Names and sizes of the formats. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["int8", "int4", "fp8", "fp4"]

SCALE_BYTES = 2
"""Bytes of a scale in bfloat16; float32 models need twice as many."""


@dataclass(frozen=True)
class Format:
    """How the weights of a linear layer are stored."""

    name: str
    kind: Kind
    group: int | None = None  # input features that share a scale; None: the whole row shares one

    @property
    def per_byte(self) -> int:
        """Values in a byte."""
        return 2 if self.kind in ("int4", "fp4") else 1

    def nbytes(self, rows: int, columns: int, scale_bytes: int = SCALE_BYTES) -> int:
        """Memory of a weight [rows, columns]."""
        if self.kind == "int4":
            assert self.group is not None
            return rows * columns // 2 + 2 * scale_bytes * rows * (columns // self.group)
        return rows * columns + scale_bytes * rows

    def divides(self, columns: int) -> bool:
        """Whether a row of `columns` input features can be cut into groups."""
        return self.group is None or columns % self.group == 0


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format("int8", "int8"),
        Format("int4", "int4", 128),
        Format("int4-64", "int4", 64),
        Format("int4-32", "int4", 32),
        Format("fp8", "fp8"),
    )
}
"""The formats that `WorkerOptions.quantization` may name beside "none"."""

HEAD_FORMAT = FORMATS["int8"]
"""The output head of a quantized model has it, whatever the layers have: with 4 bits the head errs where it counts
most, and in 16 bits it would be half of what a decode step reads."""
