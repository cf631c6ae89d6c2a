"""A file of safetensors that is read, not memory-mapped: one that is shortened meanwhile, as by somebody who copies a
new version over it, is an error here. A mapped one would end the whole worker (SIGBUS)."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

LONGEST_REASON = 300
"""Most characters of the reason, which may quote the file."""


class TensorFileError(Exception):
    """The file is no safetensors, not whole, or too large; says why."""


def read_tensors(path: Path, most_bytes: int) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises OSError, TensorFileError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise TensorFileError(f"{size} bytes are more than the {most_bytes} for which there is room")
        data = file.read(size)
    if len(data) < size:
        raise TensorFileError("it was shortened while it was read: try again")
    try:
        return load(data)
    except SafetensorError as error:
        raise TensorFileError(f"it is cut off, or no safetensors: {str(error)[:LONGEST_REASON]}") from None
    except KeyError as error:
        raise TensorFileError(f"it has numbers in the format {error}, which cannot be read") from None
