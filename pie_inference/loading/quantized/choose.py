"""Finds the scheme of a checkpoint in its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import CheckpointError
from .scheme import CONFIG, TAKE_THE_ORIGINAL, Scheme, Settings
from .schemes.awq import Awq
from .schemes.compressed_tensors import CompressedTensors
from .schemes.fp8 import Fp8Blocks
from .schemes.gptq import Gptq

SCHEMES: Mapping[str, Callable[[Settings], Scheme]] = {
    "fp8": Fp8Blocks,
    "gptq": Gptq,
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
}


def read_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a config.json; None if the checkpoint is not quantized. Raises CheckpointError for schemes that are
    not supported, with the key and what to take instead."""
    found = config.get("quantization_config")
    text = config.get("text_config")
    if found is None and isinstance(text, dict):
        found = text.get("quantization_config")
    if not found:
        return None
    if not isinstance(found, dict):
        raise CheckpointError(f"{CONFIG}: expected an object, not {found!r}")
    method = found.get("quant_method")
    if not isinstance(method, str) or method not in SCHEMES:
        raise CheckpointError(
            f"{CONFIG}: a checkpoint quantized with {method!r} is not supported, only with {', '.join(SCHEMES)}; "
            f"{TAKE_THE_ORIGINAL}"
        )
    return SCHEMES[method](Settings(found))
