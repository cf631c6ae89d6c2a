"""A Llama checkpoint as a GGUF file in bfloat16, for llama.cpp. Needs the package gguf."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

Config = Mapping[str, Any]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE_FILE = "model.safetensors"


def gguf_of(checkpoint: Path) -> Path:
    """The file beside the checkpoint's folder, made once. Raises ImportError without gguf."""
    path = checkpoint.with_name(f"{checkpoint.name}-BF16-BF16-text.gguf")
    if not path.exists():
        gguf = import_module("gguf")
        unfinished = path.with_suffix(".unfinished")
        _write(gguf, checkpoint, unfinished)
        os.replace(unfinished, path)
    return path


def _write(gguf: Any, checkpoint: Path, path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, config)
    _add_tokenizer(gguf, writer, json.loads((checkpoint / "tokenizer.json").read_text()), config)
    for name, tensor in _tensors(checkpoint, config):
        if tensor.ndim == 1:  # llama.cpp stores norms in float32
            writer.add_tensor(name, tensor.float().numpy())
        else:
            type = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), type), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: Config) -> None:
    """Writes the sizes."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_tokenizer(gguf: Any, writer: Any, tokenizer: Mapping[str, Any], config: Config) -> None:
    """Writes a byte-level tokenizer, with a merge that never applies if it has none: llama.cpp wants one."""
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    names = {number: text for text, number in tokenizer["model"]["vocab"].items()} | special
    numbers, kinds = range(config["vocab_size"]), gguf.TokenType
    merges = tokenizer["model"]["merges"] or [["!", "!"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([names.get(number, f"[{number}]") for number in numbers])
    writer.add_token_types([kinds.CONTROL if number in special else kinds.NORMAL for number in numbers])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _tensors(checkpoint: Path, config: Config) -> Iterator[tuple[str, Tensor]]:
    """The tensors by llama.cpp's names; without `output`, the embedding is also the head."""
    safetensors = import_module("safetensors.torch").load_file(checkpoint / WHOLE_FILE)
    yield "token_embd.weight", safetensors["model.embed_tokens.weight"]
    yield "output_norm.weight", safetensors["model.norm.weight"]
    if not config["tie_word_embeddings"]:
        yield "output.weight", safetensors["lm_head.weight"]
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for layer in range(config["num_hidden_layers"]):
        for theirs, name in NAMES.items():
            tensor = safetensors[f"model.layers.{layer}.{theirs}.weight"]
            yield f"blk.{layer}.{name}.weight", _interleave(tensor, heads[name]) if name in heads else tensor


def _interleave(weight: Tensor, heads: int) -> Tensor:
    """Reorders rows of queries and keys: llama.cpp rotates neighbours, Hugging Face the halves of a head."""
    halves = weight.view(heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)
