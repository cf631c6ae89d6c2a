"""Llamas with random weights, made once and kept in the user's cache."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pie_control.config import SHIPPED, ServerConfig, find_model
from pie_inference.testing import byte_tokenizer
from testing.checkpoints import make_checkpoint

from .bpe_tokenizer import bpe_tokenizer

LLAMA_160M = "random-160m"
LLAMA_1B = "random-1b"
LLAMA_128K = "random-128k"
LLAMA_TINY = "random-tiny"
SHAPES: Mapping[str, Mapping[str, Any]] = {
    LLAMA_160M: {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_layers": 12,
        "num_heads": 12,
        "num_kv_heads": 4,
        "vocab_size": 32000,
        "max_context": 2048,
    },
    LLAMA_1B: {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_layers": 16,
        "num_heads": 32,
        "num_kv_heads": 8,
        "vocab_size": 128256,
        "max_context": 4096,
        "tie_embeddings": True,
    },
    LLAMA_128K: {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_layers": 5,
        "num_heads": 4,
        "num_kv_heads": 2,
        "vocab_size": 128256,
        "max_context": 2048,
        "tie_embeddings": True,
    },
    LLAMA_TINY: {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "vocab_size": 512,
        "max_context": 512,
        "tie_embeddings": True,
    },
}
"""random-1b has the shape of Llama-3.2-1B (1.24 billion parameters); random-160m has 153 million parameters;
random-128k has the layers of the demo model under the vocabulary of random-1b, with a tokenizer that merges;
random-tiny is the smallest whose layers can be cut into the groups of every form of weights."""
VERSION = 2
"""Raise it with every change of a checkpoint's content, so that old checkpoints are made again."""


def model_folder(name: str) -> Path:
    """The folder of a model that ships, or of one with random weights."""
    return Path(find_model(name).path) if name in SHIPPED else random_model(name)


def random_model(name: str) -> Path:
    """The folder of a checkpoint in bfloat16 with a shape of `SHAPES`, made on first use."""
    folder = cache_folder() / f"{name}-v{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            os.replace(_make(Path(unfinished) / name, name), folder)
    return folder


def cache_folder() -> Path:
    """The folder in which benchmarks keep files that take long to make."""
    return Path(ServerConfig().resolved().cache_dir) / "benchmarks"


def _make(folder: Path, name: str) -> Path:
    shape = SHAPES[name]
    make_checkpoint(folder, dtype=torch.bfloat16, **shape)
    make_tokenizer = bpe_tokenizer if name == LLAMA_128K else word_tokenizer
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(shape["vocab_size"])))
    return folder


def word_tokenizer(vocab_size: int) -> dict[str, Any]:
    """A tokenizer of bytes, special tokens, and a word for every other id, so that tokens give text as in a trained
    model."""
    tokenizer: dict[str, Any] = json.loads(byte_tokenizer.tokenizer_json())
    words = {f"Ġword{number}": number for number in range(byte_tokenizer.VOCAB_SIZE, vocab_size)}
    tokenizer["model"]["vocab"] |= words
    return tokenizer
