"""The model random-160m: a Llama with random weights, made once and kept in the user's cache."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from pie_control.config import ServerConfig
from pie_control.inference_client import byte_tokenizer
from tests.checkpoints import make_checkpoint

NAME = "random-160m"
VOCAB_SIZE = 32000
VERSION = 1
"""Raised with every change of this file, so that an older checkpoint is made anew."""


def random_160m() -> Path:
    """Its folder: 153 million parameters in bfloat16, 12 layers, 12 heads of which 4 have keys and values."""
    cache = Path(ServerConfig().resolved().cache_dir) / "benchmarks"
    folder = cache / f"{NAME}-v{VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            os.replace(_make(Path(unfinished) / NAME), folder)
    return folder


def _make(folder: Path) -> Path:
    make_checkpoint(
        folder,
        hidden_size=768,
        intermediate_size=3072,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        vocab_size=VOCAB_SIZE,
        max_context=2048,
        dtype=torch.bfloat16,
    )
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    return folder


def _tokenizer() -> dict[str, Any]:
    """Bytes, special tokens, and a word for every other id, so that a token gives text as in a trained model."""
    tokenizer: dict[str, Any] = json.loads(byte_tokenizer.tokenizer_json())
    words = {f"Ġword{number}": number for number in range(byte_tokenizer.VOCAB_SIZE, VOCAB_SIZE)}
    tokenizer["model"]["vocab"] |= words
    return tokenizer
