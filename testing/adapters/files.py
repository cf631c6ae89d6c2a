"""LoRA adapters in the files of PEFT, with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pie_inference.adapters.files import FILE
from pie_inference.adapters.peft_config import CONFIG_FILE

PREFIX = "base_model.model.model.layers"
LLAMA = {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.o_proj"), (64, 64)),
    **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (64, 32)),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (64, 96)),
    "mlp.down_proj": (96, 64),
}
"""Inputs and outputs of the layers of the model that `make_checkpoint` makes."""


def sizes_of(model: Path) -> dict[str, tuple[int, int]]:
    """The sizes of a Llama checkpoint, as `LLAMA` has them."""
    config = json.loads((model / "config.json").read_text())
    size, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {
        "self_attn.q_proj": (size, query),
        "self_attn.o_proj": (query, size),
        **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (size, kv)),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (size, inner)),
        "mlp.down_proj": (inner, size),
    }


def make_adapter(
    folder: Path,
    *,
    rank: int = 4,
    modules: Sequence[str] = ("self_attn.q_proj", "mlp.down_proj"),
    layers: int = 2,
    sizes: Mapping[str, tuple[int, int]] = LLAMA,
    seed: int = 0,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
    **config: Any,
) -> Path:
    """Writes an adapter for the model that `make_checkpoint` makes into `folder`. `tensors` are put in place of its
    own; None: left out. `config` changes its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    own: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        for module in modules:
            ins, outs = sizes[module]
            name = f"{PREFIX}.{layer}.{module}"
            own[f"{name}.lora_A.weight"] = torch.randn(rank, ins, generator=generator) * ins**-0.5
            own[f"{name}.lora_B.weight"] = torch.randn(outs, rank, generator=generator) * rank**-0.5
    written = {name: tensor for name, tensor in {**own, **(tensors or {})}.items() if tensor is not None}
    save_file(written, folder / FILE)
    names = sorted({module.rpartition(".")[2] for module in modules})
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": names, "bias": "none"}
    (folder / CONFIG_FILE).write_text(json.dumps({**given, "base_model_name_or_path": "tiny", **config}))
    return folder
