"""Write a trained model as a Hugging Face folder: `config.json`, `generation_config.json`, `model.safetensors`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from examples.demo_model.model import DemoLlama, ModelConfig
from examples.demo_model.tokenizer import BEGIN, END, PAD, token_id


def export(model: DemoLlama, folder: Path) -> None:
    """Write weights (bfloat16) and configuration; the tied output layer is not stored."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in model.state_dict().items()
    }
    unfinished = folder / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    os.replace(unfinished, folder / "model.safetensors")
    ids = {f"{name}_token_id": token_id(token) for name, token in (("bos", BEGIN), ("eos", END), ("pad", PAD))}
    _write(folder / "config.json", {**_configuration(model.config), **ids})
    _write(folder / "generation_config.json", {**ids, "do_sample": False, "max_new_tokens": 256})


def _configuration(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
