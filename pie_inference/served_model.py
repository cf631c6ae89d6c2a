"""A loaded model with its memory: what the handlers work on."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention.interface import AttentionBackend
from .attention.torch_cpu import TorchAttention
from .config import WorkerConfig
from .errors import CheckpointError, ConfigError
from .kv_cache.pool import KvCache, KvShape, lazy_zeros
from .models.config import ModelConfig
from .models.interface import Model
from .models.registry import build_model, read_architecture
from .protocol import ModelDescription
from .tokenizer_files import TokenizerFiles, read_tokenizer_files
from .weights import Checkpoint, WeightLoader, read_json

TRAITS = ("Core", "Allocate", "InputText", "Forward", "Tokenize", "OutputText", "Fused")
MAX_DIST = 4096
SMALL_MODEL = 200_000_000  # parameters up to which a CPU serves float32: exact, and fast enough
MAX_PAGES = 65536
MAX_EMBEDS = 65536
MAX_EMBED_BYTES = 1 << 30
MAX_CPU_CACHE_BYTES = 4 << 30
MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.8}  # of the memory that is free once the model is loaded


@dataclass(frozen=True)
class ServedModel:
    """A model, its pools, and how its worker describes it."""

    model: Model
    cache: KvCache
    attention: AttentionBackend
    embeds: Tensor  # [num_embeds, hidden_size]: an input embedding, or an output after the last norm
    tokens: Tensor  # int64 [num_token_slots]
    description: ModelDescription

    @property
    def device(self) -> torch.device:
        return self.embeds.device


def load(config: WorkerConfig) -> ServedModel:
    """Loads a model folder and takes memory for its pools. Raises CheckpointError or ConfigError."""
    if not config.model.is_dir():
        raise CheckpointError(f"{config.model}: there is no such folder")
    raw_config = read_json(config.model / "config.json")
    model_config = read_architecture(raw_config)
    tokenizer = read_tokenizer_files(config.model, raw_config)
    device = _choose_device(config.device)
    checkpoint = Checkpoint(config.model)
    weights = WeightLoader(checkpoint, _choose_dtype(config.dtype, device, checkpoint), device)
    model = build_model(model_config, weights)
    cache = _make_cache(config, model_config, weights.dtype, device)
    embeds = _make_embeds(config, model_config, weights.dtype, device)
    return ServedModel(
        model=model,
        cache=cache,
        attention=TorchAttention(cache, model_config.num_heads),
        embeds=embeds,
        tokens=torch.zeros(config.token_slots, dtype=torch.int64, device=device),
        description=_describe(config, model_config, tokenizer, weights, cache, len(embeds)),
    )


def _describe(
    config: WorkerConfig,
    model: ModelConfig,
    tokenizer: TokenizerFiles,
    weights: WeightLoader,
    cache: KvCache,
    num_embeds: int,
) -> ModelDescription:
    return ModelDescription(
        name=config.name,
        architecture=model.architecture,
        traits=TRAITS,
        dtype=str(weights.dtype).removeprefix("torch."),
        device=str(weights.device),
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        max_context=model.max_context,
        page_size=config.page_size,
        num_pages=cache.num_pages,
        num_embeds=num_embeds,
        num_token_slots=config.token_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_rows=config.max_batch_rows,
        max_dist=min(model.vocab_size, MAX_DIST),
        stop_tokens=tokenizer.stop_tokens,
        tokenizer=tokenizer.tokenizer,
        tokenizer_config=tokenizer.config,
        page_bytes=cache.shape.page_bytes,
        weight_bytes=weights.bytes_loaded,
    )


def _choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine or this torch has no CUDA device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _choose_dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16
    fast_bfloat16 = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast_bfloat16 and checkpoint.num_parameters() > SMALL_MODEL else torch.float32


def _make_cache(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> KvCache:
    shape = KvShape(model.num_layers, model.num_kv_heads, model.head_dim, config.page_size, dtype)
    fitting = int(_free_bytes(device) * MEMORY_SHARE[device.type]) // shape.page_bytes
    if device.type == "cpu":
        fitting = min(fitting, MAX_CPU_CACHE_BYTES // shape.page_bytes)
    return KvCache(shape, config.pages or max(1, min(fitting, MAX_PAGES)), device)


def _make_embeds(config: WorkerConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    fitting = max(1, MAX_EMBED_BYTES // (model.hidden_size * dtype.itemsize))
    return lazy_zeros((config.embeds or min(MAX_EMBEDS, fitting), model.hidden_size), dtype, device)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
