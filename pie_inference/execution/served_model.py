"""A loaded model with its memory: what the handlers work on."""

from __future__ import annotations

import io
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.choose import Wanted, choose_attention
from ..config import WorkerConfig, default_cache_dir
from ..cpu_kernels.library import find_library
from ..device.host_memory import release_freed
from ..device.machine import choose_device, choose_dtype, free_bytes_of_rank
from ..device.ranks import Ranks, SingleRank, share
from ..kv_cache.host_pages import HostPages
from ..kv_cache.pages import KvCache
from ..kv_cache.sizing import make_cache, make_embeds, make_host_pages
from ..loading.checkpoint import Checkpoint, read_json
from ..loading.hub import find_folder
from ..loading.progress import LoadProgress
from ..loading.tokenizer_files import TokenizerFiles, read_tokenizer_files
from ..loading.weight_sizes import check_fit, check_groups
from ..loading.weights import WeightLoader
from ..models.config import ModelConfig
from ..models.interface import Model
from ..models.registry import build_model, read_architecture
from ..ops.choose import choose_ops
from ..protocol import BATCHES, ModelDescription
from ..quantization.choose import choose_quantizer
from .direct import Executor
from .graphs import make_executor

MAX_DIST = 4096


@dataclass(frozen=True)
class ServedModel:
    """A model, its pools, and how its worker describes it."""

    model: Model
    cache: KvCache
    host_pages: HostPages
    executor: Executor
    ranks: Ranks
    embeds: Tensor  # [num_embeds, hidden_size]: an input embedding, or an output after the last norm
    tokens: Tensor  # int64 [num_token_slots]
    description: ModelDescription

    @property
    def device(self) -> torch.device:
        return self.embeds.device


def load(config: WorkerConfig, ranks: Ranks | None = None) -> ServedModel:
    """Loads a model folder, of a group this rank's share, and takes memory for its pools. Raises CheckpointError or
    ConfigError."""
    ranks = ranks or SingleRank()
    folder = find_folder(config.model)
    raw_config = read_json(folder / "config.json")
    model_config = read_architecture(raw_config, config.max_context)
    tokenizer = read_tokenizer_files(folder, raw_config)
    num_heads = _check_shares(model_config, ranks)
    device = choose_device(config.device, ranks.rank, ranks.size)
    checkpoint = Checkpoint(folder)
    dtype = choose_dtype(config.dtype, device, checkpoint)
    library = find_library(config.kernels, config.cache_dir or default_cache_dir(), device)
    check_groups(checkpoint, config.quantization)
    check_fit(checkpoint, dtype, config.quantization, free_bytes_of_rank(device, ranks), ranks.size)
    progress = _show_progress(checkpoint, ranks)
    quantizer = choose_quantizer(config.quantization, device, dtype, library)
    ops = choose_ops(config.kernels, device, dtype, library)
    weights = WeightLoader(checkpoint, ops, dtype, device, ranks, quantizer, progress)
    model = build_model(model_config, weights)
    progress.finish()
    release_freed()
    cache = make_cache(config, model_config, dtype, device, ranks)
    host_pages = make_host_pages(config, cache, ranks)
    embeds = make_embeds(config, model_config, dtype, device)
    wanted = Wanted(cache, num_heads, model_config.attention, library)
    return ServedModel(
        model=model,
        cache=cache,
        host_pages=host_pages,
        executor=make_executor(config.cuda_graphs, model, choose_attention(config.attention, wanted), embeds),
        ranks=ranks,
        embeds=embeds,
        tokens=torch.zeros(config.token_slots, dtype=torch.int64, device=device),
        description=_describe(config, model_config, tokenizer, weights, host_pages, len(embeds)),
    )


def _check_shares(model: ModelConfig, ranks: Ranks) -> int:
    """This rank's attention heads. Raises CheckpointError before weights are read where ranks cannot share them."""
    share(ranks, model.num_kv_heads, "key-value heads")
    return share(ranks, model.num_heads, "attention heads")


def _show_progress(checkpoint: Checkpoint, ranks: Ranks) -> LoadProgress:
    """The leader tells of its own share; the others take about as long."""
    return LoadProgress(checkpoint.num_bytes() // ranks.size, None if ranks.rank == 0 else io.StringIO())


def _describe(
    config: WorkerConfig,
    model: ModelConfig,
    tokenizer: TokenizerFiles,
    weights: WeightLoader,
    host_pages: HostPages,
    num_embeds: int,
) -> ModelDescription:
    cache, size = host_pages.cache, weights.ranks.size
    return ModelDescription(
        name=config.name,
        architecture=model.architecture,
        calls=tuple(BATCHES),
        dtype=str(weights.dtype).removeprefix("torch."),
        device=str(weights.device) if size == 1 else f"{size} x {weights.device.type}",
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        max_context=model.max_context,
        page_size=config.page_size,
        num_pages=cache.num_pages,
        num_host_pages=host_pages.num_pages,
        num_embeds=num_embeds,
        num_token_slots=config.token_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_batch_rows=config.max_batch_rows,
        max_dist=min(model.vocab_size, MAX_DIST),
        max_swap_pages=host_pages.max_swap_pages,
        stop_tokens=tokenizer.stop_tokens,
        tokenizer=tokenizer.tokenizer,
        tokenizer_config=tokenizer.config,
        page_bytes=size * cache.shape.page_bytes,
        weight_bytes=size * weights.bytes_loaded,
    )
