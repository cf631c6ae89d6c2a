"""What can be told of a checkpoint without reading a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.choose import Wanted, name_of_choice
from ..config import WorkerConfig, default_cache_dir
from ..cpu_kernels.library import find_library
from ..device.machine import choose_device, choose_dtype, free_bytes
from ..device.threads import default_threads
from ..errors import InferenceError
from ..kv_cache.pages import KvCache, KvShape
from ..kv_cache.sizing import fitting_pages
from ..loading.checkpoint import Checkpoint, read_json
from ..loading.hub import find_folder
from ..loading.tokenizer_files import read_tokenizer_files
from ..loading.weight_sizes import WeightSize, check_fit, check_groups, sizes, weight_bytes
from ..models.config import ModelConfig
from ..models.registry import read_architecture


@dataclass(frozen=True)
class Shape:
    """The model itself."""

    family: str  # model_type of config.json
    architecture: str
    parameters: int
    file_bytes: int
    max_context: int
    weights: tuple[WeightSize, ...]  # in every form, the largest first


@dataclass(frozen=True)
class Choice:
    """How it would be served here."""

    device: str
    dtype: str
    quantization: str
    attention: str
    threads: int
    weight_bytes: int
    free_bytes: int
    page_bytes: int
    page_size: int  # tokens in a page
    num_pages: int

    @property
    def cached_tokens(self) -> int:
        """Tokens of all sequences together that the KV cache would hold."""
        return self.num_pages * self.page_size


@dataclass(frozen=True)
class Checkup:
    """What is known of a checkpoint. `obstacle` says why it cannot be served; then the rest may be missing."""

    model: str
    obstacle: str | None
    shape: Shape | None
    choice: Choice | None

    def as_json(self) -> dict[str, Any]:
        """Nested objects, as `pie models --json` prints them."""
        from dataclasses import asdict

        found = asdict(self)
        if self.choice is not None:
            found["choice"]["cached_tokens"] = self.choice.cached_tokens
        return found


def check_up(config: WorkerConfig) -> Checkup:
    """Everything that can be told; nothing raises for what is wrong with the checkpoint or the options."""
    shape: Shape | None = None
    try:
        folder = find_folder(config.model)
        raw = read_json(folder / "config.json")
        model = read_architecture(raw)
        checkpoint = Checkpoint(folder)
        shape = _shape(raw, model, checkpoint)
        read_tokenizer_files(folder, raw)
        choice = _choose(config, model, checkpoint)
    except InferenceError as error:
        return Checkup(str(config.model), str(error), shape, None)
    return Checkup(str(config.model), None, shape, choice)


def _shape(raw: Mapping[str, Any], model: ModelConfig, checkpoint: Checkpoint) -> Shape:
    return Shape(
        family=str(raw.get("model_type", "unknown")),
        architecture=model.architecture,
        parameters=checkpoint.num_parameters(),
        file_bytes=checkpoint.num_bytes(),
        max_context=model.max_context,
        weights=sizes(checkpoint),
    )


def _choose(config: WorkerConfig, model: ModelConfig, checkpoint: Checkpoint) -> Choice:
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device, checkpoint)
    free = free_bytes(device)
    check_groups(checkpoint, config.quantization)
    check_fit(checkpoint, dtype, config.quantization, free)
    weights = weight_bytes(checkpoint.tensors(), dtype, config.quantization)
    shape = KvShape(model.num_layers, model.num_kv_heads, model.head_dim, config.page_size, dtype)
    return Choice(
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        quantization=config.quantization,
        attention=_attention(config, model, shape, device),
        threads=config.threads or default_threads(weights),
        weight_bytes=weights,
        free_bytes=free,
        page_bytes=shape.page_bytes,
        page_size=config.page_size,
        num_pages=config.pages or fitting_pages(shape, device, free - weights),
    )


def _attention(config: WorkerConfig, model: ModelConfig, shape: KvShape, device: torch.device) -> str:
    library = find_library(config.kernels, config.cache_dir or default_cache_dir(), device)
    wanted = Wanted(KvCache(shape, 1, device), model.num_heads, model.attention, library)
    return name_of_choice(config.attention, wanted)
