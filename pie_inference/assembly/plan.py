"""Plans how a checkpoint is served on this machine, before a weight is read.

This is the one place that chooses: a worker loads what the plan says, and `pie models` only prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..attention.choose import Requirements
from ..config import WorkerConfig
from ..cpu_kernels.library import Library, find_library
from ..cpu_kernels.ways import Way
from ..device.machine import choose_device, choose_dtype, free_bytes_of_rank
from ..device.ranks import Ranks
from ..device.threads import default_threads, threads_of_rank
from ..errors import CheckpointError, ConfigError
from ..json_files import check_depth, read_json
from ..kv_cache import sizing
from ..kv_cache.pages import KvShape
from ..loading.checkpoint import Checkpoint
from ..loading.hub import find_folder
from ..loading.pooling_files import read_pooling
from ..loading.quantized.check import check_scales
from ..loading.quantized.choose import find_scheme
from ..loading.tokenizer_files import TokenizerFiles, check_vocabulary, read_tokenizer_files
from ..loading.weight_sizes import TOWERS, check_fit, check_groups, drafts_of, weight_bytes
from ..models.borrowed.config import BorrowedConfig
from ..models.config import ModelConfig
from ..models.image_processor import ImageProcessor, read_image_processor
from ..models.registry import read_architecture
from ..options import default_cache_dir
from ..protocol import Vision
from ..recurrence.states import StateShape
from .tensors import check_tensors


@dataclass(frozen=True)
class ModelFiles:
    """The files of a checkpoint, as read from config.json and the headers."""

    raw_config: Mapping[str, Any]  # config.json
    config: ModelConfig
    checkpoint: Checkpoint


def read_model(config: WorkerConfig) -> ModelFiles:
    """Reads config.json and the headers of the weights. Raises CheckpointError."""
    folder = find_folder(config.model)
    raw_config = read_json(folder / "config.json")
    check_depth(folder / "config.json", raw_config)
    try:
        scheme = find_scheme(folder, raw_config)
        cache_dir = config.cache_dir or default_cache_dir()
        model = read_architecture(raw_config, config.max_context, config.model_code, cache_dir)
    except CheckpointError as error:
        told = str(error)
        raise CheckpointError(f"{folder}/{told}" if told.startswith("config.json") else told) from None
    if scheme is not None and config.quantization != "none":
        raise ConfigError(
            f"--quantization {config.quantization}: the checkpoint is quantized already ({scheme.name}); serve it "
            "without this option, or take the original"
        )
    left_out = (*drafts_of(raw_config), *(() if model.vision else TOWERS))
    checkpoint = Checkpoint(folder, scheme, left_out)
    if not isinstance(model, BorrowedConfig) and not (checkpoint.has_head or model.tie_embeddings):
        model = replace(model, has_head=False)
    return ModelFiles(raw_config, model, checkpoint)


@dataclass(frozen=True)
class ServingPlan:
    """The choices for serving a model. Sizes are those of one rank, which has a share of heads, pages and weights."""

    config: WorkerConfig
    model: ModelConfig
    checkpoint: Checkpoint
    tokenizer: TokenizerFiles
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    why_dtype: str
    library: Library | None  # the compiled kernels for CPUs; None: there are none
    kv_shape: KvShape
    num_heads: int
    free_bytes: int  # free memory of the device before anything is loaded
    weight_bytes: int
    images: ImageProcessor | None  # None: the model takes none
    pooling: str  # as in `ModelDescription`

    @property
    def threads(self) -> int:
        """The number of threads that compute."""
        total = self.config.threads or default_threads(self.weight_bytes * self.ranks.size)
        return threads_of_rank(total, self.ranks.size)

    def num_pages(self, free: int) -> int:
        """The number of KV pages, if `free` bytes of the device are left once the weights are loaded."""
        return self.config.pages or sizing.fitting_pages(
            self.kv_shape, self.device, self._beside_embeds(free), self.ranks.size, self.state_bytes
        )

    @property
    def state_shape(self) -> StateShape | None:
        """What one rank keeps of a text beside keys and values; None: nothing."""
        return self.model.state_of(self.ranks)

    @property
    def state_bytes(self) -> int:
        """Memory of a state on one rank; 0: the model keeps none."""
        return 0 if self.state_shape is None else self.state_shape.nbytes(self.dtype)

    def num_states(self, free: int) -> int:
        """The number of states, if `free` bytes of the device are left once the weights are loaded."""
        if not self.state_bytes:
            return 0
        left = self._beside_embeds(free)
        return self.config.states or sizing.fitting_states(self.state_bytes, self.device, left, self.ranks.size)

    def _beside_embeds(self, free: int) -> int:
        """What embeds leave of `free` bytes. On a CPU they take memory only as they are used."""
        embeds = self.num_embeds * self.model.hidden_size * self.dtype.itemsize
        return free if self.device.type == "cpu" else max(0, free - embeds)

    @property
    def num_embeds(self) -> int:
        return self.config.embeds or sizing.fitting_embeds(self.model.hidden_size, self.dtype)

    @property
    def vision(self) -> Vision | None:
        """How the model takes images."""
        if self.images is None or self.model.vision is None:
            return None
        return self.images.describe(self.model.vision, self.model.token_work, self.config.max_batch_tokens)

    def library_for(self, way: Way) -> Library | None:
        """The compiled kernels for products that go this way."""
        return self.library if way == "own" else None

    def attention_requirements(self, num_pages: int, way: Way) -> Requirements:
        """What attention must serve with a cache of `num_pages` pages. The way does not bind one whose attention an
        option names."""
        library = self.library_for("own" if self.config.attention == "cpu" else way)
        return Requirements(self.kv_shape, num_pages, self.device, self.num_heads, self.model.attention, library)


def _find_library(config: WorkerConfig, device: torch.device) -> Library | None:
    if config.dtype == "float64":  # the compiled kernels have none
        if config.kernels == "own":
            raise ConfigError("--dtype float64 is by plain torch operations: it does not go with --kernels own")
        return None
    return find_library(config.kernels, config.cache_dir or default_cache_dir(), device, config.max_isa)


def make_plan(config: WorkerConfig, files: ModelFiles, ranks: Ranks) -> ServingPlan:
    """Plans a model. Raises CheckpointError for files that cannot be served, ConfigError for options that do not fit
    the files or this machine. All ranks call it together."""
    model, checkpoint = files.config, files.checkpoint
    tokenizer = read_tokenizer_files(checkpoint.folder, files.raw_config, model.vocab_size)
    check_vocabulary(checkpoint.folder, tokenizer.tokenizer, model.vocab_size)
    num_heads, kv_heads = model.heads_of(ranks)
    device = choose_device(config.device, ranks.rank, ranks.size)
    library = _find_library(config, device)
    quantized = config.quantization != "none" or checkpoint.scheme is not None
    dtype, why_dtype = choose_dtype(config.dtype, device, checkpoint.num_parameters(), library is not None, quantized)
    free = free_bytes_of_rank(device, ranks)
    if dtype == torch.float64 and quantized:
        raise ConfigError("--dtype float64 is to compare with: it does not go with --quantization")
    if config.states and model.state is None:
        raise ConfigError(f"--states: {model.architecture} keeps keys and values only; leave the option out")
    check_groups(checkpoint, config.quantization)
    check_scales(checkpoint)
    check_tensors(model, checkpoint, dtype, ranks)
    check_fit(checkpoint, dtype, config.quantization, free, ranks.size)
    images = read_image_processor(checkpoint.folder, model.vision.tile_size) if model.vision else None
    pooling = read_pooling(checkpoint.folder)
    return ServingPlan(
        config=config,
        model=model,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        ranks=ranks,
        device=device,
        dtype=dtype,
        why_dtype=why_dtype,
        library=library,
        kv_shape=KvShape(len(model.attention), kv_heads, model.head_dim, config.page_size, dtype),
        num_heads=num_heads,
        free_bytes=free,
        weight_bytes=weight_bytes(checkpoint.tensors(), dtype, config.quantization, ranks.size),
        images=images,
        pooling=pooling,
    )
