"""Computes how much memory a checkpoint will take here, from its headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..amounts import amount
from ..errors import ConfigError
from ..quantization.names import FORMATS, HEAD_FORMAT, Format
from .checkpoint import HEAD, SPARE, Checkpoint, StoredTensor

TABLES = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "backbone.embeddings.weight")
"""Endings of the names of tables of tokens, by which an output head may be tied to one."""
HEADS = (HEAD, "embed_out.weight")
KEPT_EXACT = (
    *TABLES,
    *("embeddings.weight", "embed_positions.weight", "wpe.weight"),
    "mlp.gate.weight",
    "block_sparse_moe.gate.weight",
    "router.weight",
    "router.proj.weight",
    "_coefs.weight",
    "embed_tokens_per_layer.weight",
    "per_layer_input_gate.weight",
    "shared_expert_gate.weight",
    "conv1d.weight",
    "_bias",
    *(f"linear_attn.in_proj_{name}.weight" for name in ("a", "b", "ba")),
)
"""Endings of the names of matrices that are never quantized: embeddings, routers, convolutions, gates of heads and of
embeddings of layers, mixtures of streams, biases of experts."""

TOWERS = (
    *("vision_model.", "vision_tower.", "visual.", "connector.", "projector.", "embed_vision.", "vision_encoder."),
    *("vision_projection.", "vision_embed_tokens.", "high_res_vision_neck.", "high_res_vision_proj."),
    *("img_processor.", "qformer.", "query_tokens", "language_projection.", "aligner.", "model.merger.", "vqmodel."),
    *("generation_embeddings.", "generation_head.", "audio_tower.", "embed_audio.", "audio_embed.encoder."),
    *("resampler_model.", "spatial_projectors.", "vision_adapter.", "visual_embeddings_table."),
    *("acoustic_tokenizer_encoder.", "semantic_tokenizer_encoder.", "video_tower.", "image_tower."),
    *("model.encoder.", "word_timestamp_encoder.", "talker.", "code2wav."),
)
"""Parts of the names of matrices that turn images into vectors, or are of models that hear, draw and speak. These are
not quantized either; models of text leave them out."""
DRAFTS = "num_nextn_predict_layers"
"""The key of config.json that says how many layers behind the last one draft further tokens."""

HEADROOM = 1 << 29
"""Memory that a worker needs beside the weights: its code, intermediate results, a small KV cache."""
SMALL_HEADROOM = 1 << 26
"""A small model needs less: this, plus as much as its weights."""


def drafts_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Parts of the names of tensors that draft several tokens at once. No model loads them."""
    text = config.get("text_config")
    values = text if isinstance(text, Mapping) else config
    count, layers = values.get(DRAFTS), values.get("num_hidden_layers")
    own = range(layers, layers + min(count, layers)) if isinstance(count, int) and isinstance(layers, int) else ()
    return "mtp.", *(f"layers.{layer}." for layer in own)


@dataclass(frozen=True)
class WeightSize:
    """The memory of all weights in one form."""

    dtype: str  # float32 or bfloat16
    quantization: str  # none, or one of FORMATS
    nbytes: int


def weight_bytes(tensors: Iterable[StoredTensor], dtype: torch.dtype, quantization: str, ranks: int = 1) -> int:
    """Memory that these weights take when they serve, on one of `ranks` ranks; quantization "none" or one of FORMATS.
    A model with one tensor as its embedding table and its output head has it twice, the head in a packed form."""
    stored = tuple(tensors)
    return sum(
        tensor_bytes(tensor, dtype.itemsize, quantization) // (1 if _is_whole(tensor) else ranks)
        for tensor in (*stored, *_twins(stored))
    )


def _twins(stored: Sequence[StoredTensor]) -> list[StoredTensor]:
    """The output head that a table also is, or the table that a head also is."""
    heads = [tensor for tensor in stored if tensor.name.endswith(HEADS)]
    if not heads:
        return [tied_head(tensor) for tensor in stored if tensor.name.endswith(TABLES)]
    alone = (head for head in heads if head.per_number is None and [one.shape for one in stored].count(head.shape) == 1)
    return [replace(head, name=TABLES[0]) for head in alone]


def tied_head(table: StoredTensor) -> StoredTensor:
    """An embedding table as the output head that it also is."""
    return replace(table, name=HEAD)


def tensor_bytes(tensor: StoredTensor, itemsize: int, quantization: str) -> int:
    """Memory of one tensor; if it is not quantized, its numbers have `itemsize` bytes."""
    if tensor.per_number is not None:
        return tensor.nbytes + tensor.nbytes // SPARE
    format = _format_of(tensor, quantization)
    if format is None:
        return tensor.numel * itemsize
    return format.nbytes(tensor.numel // tensor.shape[-1], tensor.shape[-1], itemsize)


def _format_of(tensor: StoredTensor, quantization: str) -> Format | None:
    """None: it is not quantized."""
    if quantization == "none" or not _is_quantized(tensor):
        return None
    return HEAD_FORMAT if tensor.name.endswith(HEADS) else FORMATS[quantization]


def _is_quantized(tensor: StoredTensor) -> bool:
    return not _is_whole(tensor) and tensor.per_number is None


def _is_whole(tensor: StoredTensor) -> bool:
    """Whether each rank has all of it, or about as much: vectors, and what is never quantized."""
    exact = tensor.name.endswith(KEPT_EXACT) or any(part in tensor.name for part in TOWERS)
    return exact or len(tensor.shape) <= 1


def sizes(checkpoint: Checkpoint, ranks: int = 1) -> tuple[WeightSize, ...]:
    """The forms in which the weights could be served by one of `ranks` ranks, the largest first. Those that are
    quantized already stay so."""
    tensors = tuple(checkpoint.tensors())
    columns = {tensor.shape[-1] for tensor in tensors if _is_quantized(tensor) and not tensor.name.endswith(HEADS)}
    plain = [(torch.float32, "none"), (torch.bfloat16, "none")]
    fitting = [name for name, format in FORMATS.items() if all(map(format.divides, columns))]
    quantized = fitting if checkpoint.scheme is None else []
    forms = [*plain, *((torch.bfloat16, name) for name in quantized)]
    found = [WeightSize(str(dtype)[6:], name, weight_bytes(tensors, dtype, name, ranks)) for dtype, name in forms]
    return tuple(sorted(found, key=lambda size: -size.nbytes))


def largest_matrices(checkpoint: Checkpoint) -> tuple[tuple[int, int], ...]:
    """The shapes [outputs, inputs] of linear layers, at most two, that hold most of the weights."""
    held: Counter[tuple[int, int]] = Counter()
    for tensor in checkpoint.tensors():
        if _is_quantized(tensor) and len(tensor.shape) == 2 and not tensor.name.endswith(HEADS):
            held[tensor.shape[0], tensor.shape[1]] += tensor.numel
    return tuple(shape for shape, _ in held.most_common(2))


def check_groups(checkpoint: Checkpoint, quantization: str) -> None:
    """Raises ConfigError if the inputs of a layer cannot be cut into the groups of the format; it names formats that
    fit."""
    for tensor in checkpoint.tensors():
        if (format := _format_of(tensor, quantization)) is not None:
            refuse_groups(format.name, tensor.name, tensor.shape[-1])


def refuse_groups(quantization: str, name: str, columns: int) -> None:
    """Raises ConfigError if the `columns` input features of a layer cannot be cut into the groups of the format."""
    if not FORMATS[quantization].divides(columns):
        fitting = [each.name for each in FORMATS.values() if each.divides(columns)]
        raise ConfigError(
            f"--quantization {quantization}: {name} has {columns} input features on each rank, not a multiple of "
            f"{FORMATS[quantization].group}; choose {' or '.join(fitting)}"
        )


def check_fit(checkpoint: Checkpoint, dtype: torch.dtype, quantization: str, free: int, ranks: int = 1) -> None:
    """Raises ConfigError if the weights of one rank exceed `free` bytes; it names forms that would fit."""
    needed = weight_bytes(checkpoint.tensors(), dtype, quantization, ranks)
    needed += _headroom(needed)
    if needed <= free:
        return
    form = str(dtype)[6:] if quantization == "none" else quantization
    raise ConfigError(
        f"{checkpoint.folder}: the weights need {amount(needed, 'B')} of memory in {form}, "
        f"and {amount(free, 'B')} are free; {_advice(checkpoint, free, ranks)}"
    )


def _headroom(nbytes: int) -> int:
    return min(HEADROOM, SMALL_HEADROOM + nbytes)


def _advice(checkpoint: Checkpoint, free: int, ranks: int) -> str:
    fitting = [size for size in sizes(checkpoint, ranks) if size.nbytes + _headroom(size.nbytes) <= free]
    if not fitting:
        return "they would not fit in any form"
    return "these would fit: " + ", ".join(f"{_option(size)} ({amount(size.nbytes, 'B')})" for size in fitting)


def _option(size: WeightSize) -> str:
    return f"--dtype {size.dtype}" if size.quantization == "none" else f"--quantization {size.quantization}"
