"""Llama checkpoints with random weights in the format of Hugging Face, with a byte tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pie_inference.testing import byte_tokenizer

Shape = tuple[int, ...]
NORMS = ("norm.weight", "norm1.weight", "norm2.weight")


def llama_config(
    *,
    hidden_size: int = 64,
    intermediate_size: int = 96,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    vocab_size: int = 272,
    max_context: int = 512,
    tie_embeddings: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, object]:
    """The config.json of a Llama, but for what it says of rotations."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim or hidden_size // num_heads,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tie_embeddings,
        "attention_bias": attention_bias,
        "mlp_bias": mlp_bias,
        "bos_token_id": byte_tokenizer.BEGIN,
        "eos_token_id": byte_tokenizer.END,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def make_checkpoint(
    folder: Path,
    *,
    rope: dict[str, object] | None = None,
    old_rope_keys: bool = False,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    seed: int = 0,
    **shape: Any,
) -> Path:
    """Writes a Llama checkpoint with random weights into `folder` and returns it. `rope` is as in `rope_scaling`,
    `shape` as `llama_config` takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**llama_config(dtype=dtype, **shape), **_rope_keys(rope, old_rope_keys)}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, int(str(config["vocab_size"])))
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(config)
    tensors = {name: random_weight(name, shape, generator).to(dtype) for name, shape in shapes.items()}
    _save(folder, tensors, shards)
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Writes the files of a byte tokenizer into `folder`."""
    (folder / "tokenizer.json").write_bytes(byte_tokenizer.tokenizer_json(vocab_size))
    (folder / "tokenizer_config.json").write_text(json.dumps(byte_tokenizer.tokenizer_config()))


def tensor_shapes(config: dict[str, object]) -> dict[str, Shape]:
    """Names and shapes of a Llama checkpoint's tensors."""
    size, inner, vocab = (int(str(config[key])) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    dim = int(str(config["head_dim"]))
    query, kv = int(str(config["num_attention_heads"])) * dim, int(str(config["num_key_value_heads"])) * dim
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, size), "model.norm.weight": (size,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, size)
    linears = {
        "self_attn.q_proj": (query, size),
        "self_attn.k_proj": (kv, size),
        "self_attn.v_proj": (kv, size),
        "self_attn.o_proj": (size, query),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
    }
    for layer in range(int(str(config["num_hidden_layers"]))):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{norm}.weight": (size,) for norm in ("input_layernorm", "post_attention_layernorm")}
        for name, shape in linears.items():
            shapes[f"{prefix}.{name}.weight"] = shape
            if config["attention_bias" if name.startswith("self_attn") else "mlp_bias"]:
                shapes[f"{prefix}.{name}.bias"] = shape[:1]
    return shapes


def random_weight(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Weights large enough that positions and keys matter to the logits."""
    if name.endswith(NORMS):
        return 1 + 0.1 * torch.randn(shape, generator=generator)
    scale = 0.5 if len(shape) == 1 or "embed" in name else 1.5 * shape[-1] ** -0.5
    return scale * torch.randn(shape, generator=generator)


def _rope_keys(rope: dict[str, object] | None, old: bool) -> dict[str, object]:
    """The keys of config.json for theta and scaling, as transformers 5 writes them, or as older versions did."""
    if old:
        return {"rope_theta": 10000.0, "rope_scaling": rope}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **(rope or {})}}


def _save(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
