"""Finds the scheme of a checkpoint in its config.json, or in the file beside it that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...json_files import read_json
from .scheme import CONFIG, TAKE_THE_ORIGINAL, Scheme, Settings
from .schemes.awq import Awq
from .schemes.compressed_fp4 import MXFP4, NVFP4, CompressedFp4
from .schemes.compressed_tensors import CompressedTensors
from .schemes.fp8 import fp8
from .schemes.gptq import Gptq
from .schemes.modelopt import model_opt
from .schemes.mxfp4 import Mxfp4

BESIDE = "hf_quant_config.json"
"""What older versions of Model Optimizer write, and nothing to config.json."""

MLX = "quantization"
"""The key of MLX, which is in config.json of checkpoints that it quantized."""


def compressed_tensors(config: Settings) -> Scheme:
    """The scheme of compressed-tensors that the format names."""
    return CompressedFp4(config) if config.get("format") in (NVFP4, MXFP4) else CompressedTensors(config)


def auto_round(config: Settings) -> Scheme:
    """The scheme of AutoRound, which stores weights in the first format of GPTQ, or in AWQ's."""
    config.one_of("data_type", ["int"], "int")
    packing = config.one_of(
        "packing_format", [f"auto_round:{kind}" for kind in ("auto_gptq", "gptq", "auto_awq", "awq")]
    )
    return Gptq(config) if packing.endswith("gptq") else Awq(config)


SCHEMES: Mapping[str, Callable[[Settings], Scheme]] = {
    "fp8": fp8,
    "gptq": Gptq,
    "awq": Awq,
    "auto-round": auto_round,
    "compressed-tensors": compressed_tensors,
    "modelopt": model_opt,
    "mxfp4": Mxfp4,
}


def find_scheme(folder: Path, config: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a model folder with this config.json, as `read_scheme`."""
    scheme = read_scheme(config)
    path = folder / BESIDE
    if scheme is None and path.exists():
        return model_opt(Settings(read_json(path), BESIDE))
    return scheme


def read_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a config.json; None if weights are read as plain ones. Raises CheckpointError for schemes that are
    not supported, with the key and what to take instead."""
    by_mlx = config.get(MLX)
    if isinstance(by_mlx, dict) and "bits" in by_mlx:
        raise CheckpointError(f"config.json: {MLX}: what MLX has quantized is not supported; {TAKE_THE_ORIGINAL}")
    found = config.get("quantization_config")
    text = config.get("text_config")
    if found is None and isinstance(text, dict):
        found = text.get("quantization_config")
    if not found:
        return None
    if not isinstance(found, dict):
        raise CheckpointError(f"{CONFIG}: expected an object, not {found!r}")
    method = found.get("quant_method")
    if method == "bitsandbytes" or (method is None and (found.get("load_in_4bit") or found.get("load_in_8bit"))):
        return None  # `Checkpoint` reads what its weights stand for; older versions wrote no method
    if not isinstance(method, str) or method not in SCHEMES:
        raise CheckpointError(
            f"{CONFIG}: a checkpoint quantized with {method!r} is not supported, only with {', '.join(SCHEMES)}; "
            f"{TAKE_THE_ORIGINAL}"
        )
    return SCHEMES[method](Settings(found))
