"""The least that a Llama must read and compute, for bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES = 2  # per number in bfloat16


@dataclass(frozen=True)
class LlamaCosts:
    """The costs of one model in bfloat16. Norms, rotations and the look-up of embeddings are small and left out."""

    layer_weights: int  # numbers in the linear layers of all layers
    head_weights: int
    key_values: int  # numbers that one token keeps in the cache
    scores_per_pair: int  # multiplications for one query and one key, all layers and heads, keys and values

    def step_bytes(self, sequences: int, context: float) -> float:
        """Bytes that one decode step reads: all weights once, and the keys and values of all sequences."""
        return BYTES * (self.layer_weights + self.head_weights + sequences * context * self.key_values)

    def step_operations(self, sequences: int, context: float) -> float:
        """Operations of one decode step."""
        return 2 * sequences * (self.layer_weights + self.head_weights + context * self.scores_per_pair)

    def prefill_operations(self, tokens: int) -> float:
        """Operations of a causal prompt without logits: each token sees half of the prompt on average."""
        return 2 * tokens * (self.layer_weights + (tokens + 1) / 2 * self.scores_per_pair)


def llama_costs(checkpoint: Path) -> LlamaCosts:
    """The costs of a checkpoint, from its config.json."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    hidden_size, num_layers, head_dim = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    queries, key_values = config["num_attention_heads"] * head_dim, 2 * config["num_key_value_heads"] * head_dim
    layer = hidden_size * (2 * queries + key_values + 3 * config["intermediate_size"])
    return LlamaCosts(
        layer_weights=num_layers * layer,
        head_weights=config["vocab_size"] * hidden_size,
        key_values=num_layers * key_values,
        scores_per_pair=num_layers * 2 * queries,
    )
