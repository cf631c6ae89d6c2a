"""Refuses checkpoints whose weights are in other files than safetensors, with what to take instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatch

from ..errors import CheckpointError

SAFETENSORS = "*.safetensors"
GGUF = "*.gguf"
"""The format of llama.cpp."""
PICKLED = ("*.bin", "*.pth", "*.pt", "*.h5", "*.msgpack")
FORM = re.compile(r"(?:^|[-._])I?Q([1-8])(?:[-._]|$)", re.IGNORECASE)
"""The form of most weights in the name of a file, such as Q4_K_M or IQ3_XS, with its bits."""
NEAREST = {bits: "int4" if bits < 4 else "int4-32" if bits < 6 else "int8" for bits in range(1, 9)}
"""By these bits, the quantization whose weights have nearest as many: forms of 4 bits have about 4.8, of 5 bits 5.7."""


def refuse_other_formats(place: object, files: Iterable[str]) -> None:
    """Raises CheckpointError if `files`, the names of those in a folder or a repository, have weights, and none of them
    in safetensors."""
    names = sorted(files)
    if any(fnmatch(name, SAFETENSORS) for name in names):
        return
    for name in names:
        if fnmatch(name, GGUF):
            refuse_gguf(f"{place}/{name}")
    for name in names:
        if any(fnmatch(name, pattern) for pattern in PICKLED):
            how = "convert it: load it with transformers and save_pretrained(PATH)"
            raise CheckpointError(f"{place}: there is no model.safetensors, only {name}; {how}")


def refuse_gguf(file: str) -> None:
    """Raises CheckpointError for a file of GGUF."""
    found = FORM.search(file.rpartition("/")[2].removesuffix(".gguf"))
    size = f" --quantization {NEAREST[int(found[1])]}, which is of nearest size" if found else " --quantization"
    raise CheckpointError(f"{file}: GGUF is not supported; take the original checkpoint in safetensors, with{size}")
