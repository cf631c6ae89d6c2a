"""The least that a Llama must read and compute, for bounds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_inference.quantization.names import FORMATS, HEAD_FORMAT
from testing.checkpoints import tensor_shapes

BYTES = 2  # per number in bfloat16


@dataclass(frozen=True)
class LlamaCosts:
    """The costs of one model that computes in bfloat16. Norms, rotations and the look-up of embeddings are small and
    left out."""

    layer_weights: int  # numbers in the linear layers of all layers
    layer_bytes: int  # memory of these
    head_weights: int
    head_bytes: int
    key_values: int  # numbers that one token keeps in the cache
    scores_per_pair: int  # multiplications for one query and one key, all layers and heads, keys and values

    def step_bytes(self, sequences: int, context: float) -> float:
        """Bytes that one decode step reads: all weights once, and the keys and values of all sequences."""
        return self.layer_bytes + self.head_bytes + BYTES * sequences * context * self.key_values

    def step_operations(self, sequences: int, context: float) -> float:
        """Operations of one decode step."""
        return 2 * sequences * (self.layer_weights + self.head_weights + context * self.scores_per_pair)

    def prefill_operations(self, tokens: int) -> float:
        """Operations of a causal prompt without logits: each token sees half of the prompt on average."""
        return 2 * tokens * (self.layer_weights + (tokens + 1) / 2 * self.scores_per_pair)


def llama_costs(checkpoint: Path, quantization: str) -> LlamaCosts:
    """The costs of a checkpoint with this `--quantization`, from its config.json."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    linears = [shape for name, shape in tensor_shapes(config).items() if ".layers." in name and len(shape) == 2]
    queries, key_values = config["num_attention_heads"] * head_dim, 2 * config["num_key_value_heads"] * head_dim
    head = config["vocab_size"], config["hidden_size"]
    return LlamaCosts(
        layer_weights=sum(map(math.prod, linears)),
        layer_bytes=sum(_bytes(rows, columns, quantization) for rows, columns in linears),
        head_weights=math.prod(head),
        head_bytes=_bytes(*head, quantization if quantization == "none" else HEAD_FORMAT.name),
        key_values=num_layers * key_values,
        scores_per_pair=num_layers * 2 * queries,
    )


def _bytes(rows: int, columns: int, quantization: str) -> int:
    return BYTES * rows * columns if quantization == "none" else FORMATS[quantization].nbytes(rows, columns)
