"""The least that a model must read and compute, from the shapes of its tensors. Attention scores are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..loading.checkpoint import BYTES, Checkpoint, StoredTensor
from ..loading.weight_sizes import HEADS, TABLES, tensor_bytes, tied_head

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Keys of config.json for the number of experts in a layer; families differ."""


@dataclass(frozen=True)
class Costs:
    """Sizes of a model's matrices. A token costs two operations for each of their numbers that it uses."""

    layer_bytes: int  # without experts
    layer_numbers: int
    expert_bytes: int  # all experts of all layers
    expert_numbers: int
    head_bytes: int
    head_numbers: int
    expert_share: float  # share of the experts that one token uses

    def read_bytes(self, tokens: int) -> float:
        """Bytes of the weights that `tokens` tokens need together, if each chooses its experts at random."""
        touched = 1 - (1 - self.expert_share) ** tokens
        return self.layer_bytes + self.head_bytes + touched * self.expert_bytes

    def operations(self, tokens: int, logits: int) -> float:
        """Operations for `tokens` tokens, if `logits` of them get logits."""
        each = self.layer_numbers + self.expert_share * self.expert_numbers
        return 2 * (tokens * each + logits * self.head_numbers)


def model_costs(checkpoint: Checkpoint, config: Mapping[str, Any], dtype: torch.dtype, quantization: str) -> Costs:
    """The costs of a checkpoint's model. `config` is its config.json. Numbers that are stored in bfloat16 count as
    such, as `LinearPacker` keeps them, whatever the model's format.
    """
    parts: dict[str, list[StoredTensor]] = {"layer": [], "expert": [], "head": [], "table": []}
    for tensor in checkpoint.tensors():
        if len(tensor.shape) > 1:
            parts[_part(tensor.name)].append(tensor)
    head = parts["head"] or [tied_head(table) for table in parts["table"]]

    def nbytes(tensors: list[StoredTensor]) -> int:
        sizes = (BYTES["BF16"] if tensor.format == "BF16" else dtype.itemsize for tensor in tensors)
        return sum(tensor_bytes(tensor, size, quantization) for tensor, size in zip(tensors, sizes, strict=True))

    def numbers(tensors: list[StoredTensor]) -> int:
        return sum(tensor.parameters for tensor in tensors)

    return Costs(
        layer_bytes=nbytes(parts["layer"]),
        layer_numbers=numbers(parts["layer"]),
        expert_bytes=nbytes(parts["expert"]),
        expert_numbers=numbers(parts["expert"]),
        head_bytes=nbytes(head),
        head_numbers=numbers(head),
        expert_share=_expert_share(config),
    )


def _part(name: str) -> str:
    if ".experts." in name:
        return "expert"
    if name.endswith(TABLES):
        return "table"
    return "head" if name.endswith(HEADS) else "layer"


def _expert_share(config: Mapping[str, Any]) -> float:
    count = next((config[name] for name in EXPERT_COUNTS if config.get(name)), None)
    return config.get("num_experts_per_tok", count) / count if count else 1.0
