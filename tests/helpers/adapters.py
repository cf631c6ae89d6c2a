"""LoRA adapters in the files of PEFT, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pie_inference.adapters.files import FILE
from testing.adapters.files import LLAMA, PREFIX, make_adapter

__all__ = ["LLAMA", "PREFIX", "make_adapter", "merged"]


def merged(checkpoint: Mapping[str, torch.Tensor], adapter: Path, scale: float = 2.0) -> dict[str, torch.Tensor]:
    """The weights of a model with those of an adapter added to them, scale * B A."""
    from safetensors.torch import load_file

    tensors, whole = load_file(adapter / FILE), dict(checkpoint)
    for name, down in tensors.items():
        if ".lora_A." in name:
            weight = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            up, dtype = tensors[name.replace("lora_A", "lora_B")], whole[weight].dtype
            whole[weight] = whole[weight] + scale * up.to(dtype) @ down.to(dtype)
    return whole
