"""Refuses files of GGUF, the format of llama.cpp, with what to take instead."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import CheckpointError

FORM = re.compile(r"(?:^|[-._])I?Q([1-8])(?:[-._]|$)", re.IGNORECASE)
"""The form of most weights in the name of a file, such as Q4_K_M or IQ3_XS, with its bits."""
NEAREST = {bits: "int4" if bits < 4 else "int4-32" if bits < 6 else "int8" for bits in range(1, 9)}
"""By these bits, the quantization whose weights have nearest as many: forms of 4 bits have about 4.8, of 5 bits 5.7."""


def refuse_gguf(model: Path) -> None:
    """Raises CheckpointError for a file of GGUF, and for a folder that has weights in no other format."""
    files = sorted(model.glob("*.gguf")) if model.is_dir() else [model] * (model.suffix == ".gguf")
    if not files or (model.is_dir() and any(model.glob("*.safetensors"))):
        return
    found = FORM.search(files[0].stem)
    size = f" --quantization {NEAREST[int(found[1])]}, which is of nearest size" if found else " --quantization"
    raise CheckpointError(f"{files[0]}: GGUF is not supported; take the original checkpoint in safetensors, with{size}")
