"""Llama 3 with random weights: shapes, the bytes that a decode step must read, and checkpoints made in seconds."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pie_inference.testing import byte_tokenizer
from testing.checkpoints import tensor_shapes

from ..support.models.random_models import word_tokenizer

BLOCK_BYTES = 64 << 20
"""Size of a block of random numbers, which is written over and over: making all weights would take minutes."""
ITEM_BYTES = 2  # bfloat16


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama. Its context is only as long as the benchmark needs."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_embeddings: bool

    def config(self) -> dict[str, Any]:
        """The config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": self.tie_embeddings,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": byte_tokenizer.BEGIN,
            "eos_token_id": byte_tokenizer.END,
            "torch_dtype": "bfloat16",
        }

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of all weights."""
        return ITEM_BYTES * sum(math.prod(shape) for shape in tensor_shapes(self.config()).values())

    def step_bytes(self, sequences: int, context: int) -> int:
        """The least bytes that a decode step of `sequences` sequences with `context` tokens each reads: all weights,
        and all keys and values. The embedding table counts only if it is also the head."""
        cache = 2 * self.num_layers * self.num_kv_heads * self.head_dim * sequences * context
        unread = 0 if self.tie_embeddings else self.vocab_size * self.hidden_size
        return self.checkpoint_bytes + ITEM_BYTES * (cache - unread)


SHAPES: Mapping[str, Shape] = {
    "llama-1b": Shape(2048, 8192, 16, 32, 8, 64, 128256, True),
    "llama-3b": Shape(3072, 8192, 28, 24, 8, 128, 128256, True),
    "llama-8b": Shape(4096, 14336, 32, 32, 8, 128, 128256, False),
    "tiny": Shape(64, 128, 2, 4, 2, 16, 512, True),
}
"""The shapes of Llama 3.2 1B and 3B and Llama 3.1 8B, without their rope scaling, which costs nothing."""


def write_checkpoint(shape: Shape, folder: Path) -> Path:
    """Writes a checkpoint in bfloat16: weights from a normal distribution of width 0.02, norms 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    (folder / "tokenizer.json").write_text(json.dumps(word_tokenizer(shape.vocab_size)))
    (folder / "tokenizer_config.json").write_text(json.dumps(byte_tokenizer.tokenizer_config()))
    _write_safetensors(tensor_shapes(shape.config()), folder / "model.safetensors")
    return folder


def _write_safetensors(shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Writes the format by hand, because safetensors' own writer needs all tensors in memory."""
    sizes = {name: ITEM_BYTES * math.prod(shape) for name, shape in shapes.items()}
    header, offset = dict[str, Any](), 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + sizes[name]]}
        offset += sizes[name]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = _block(0.02 * torch.randn(BLOCK_BYTES // ITEM_BYTES, generator=torch.Generator().manual_seed(0)))
    ones = _block(torch.ones(BLOCK_BYTES // ITEM_BYTES // 64))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in sizes.items():
            block = ones if name.endswith("norm.weight") else random
            for written in range(0, size, len(block)):
                file.write(block[: size - written])


def _block(values: torch.Tensor) -> memoryview:
    return memoryview(values.to(torch.bfloat16).view(torch.uint8).numpy().tobytes())
