"""Llama 3 with random weights: shapes, the bytes that a decode step must read, and checkpoints made in seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pie_inference.testing import byte_tokenizer
from testing.checkpoints import llama_config, tensor_shapes

from ..support.models.large_files import ITEM_BYTES, write_weights
from ..support.models.random_models import word_tokenizer


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
        return {**llama_config(**asdict(self), max_context=4096, dtype=torch.bfloat16), "rope_theta": 500000.0}

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
    """Writes a checkpoint in bfloat16 with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    (folder / "tokenizer.json").write_text(json.dumps(word_tokenizer(shape.vocab_size)))
    (folder / "tokenizer_config.json").write_text(json.dumps(byte_tokenizer.tokenizer_config()))
    write_weights(folder / "model.safetensors", tensor_shapes(shape.config()))
    return folder
