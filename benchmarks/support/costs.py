"""The least that a Llama must read and compute, for bounds: its weights, as `pie bench-model` counts them, and
attention."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pie_inference.inspection.costs import Costs, model_costs
from pie_inference.loading.checkpoint import Checkpoint

BYTES = 2  # per number in bfloat16


@dataclass(frozen=True)
class LlamaCosts:
    """The costs of one model that computes in bfloat16. Norms, rotations and the look-up of embeddings are small and
    left out."""

    weights: Costs
    key_values: int  # numbers that one token keeps in the cache
    scores_per_pair: int  # multiplications for one query and one key, all layers and heads, keys and values

    def step_bytes(self, sequences: int, context: float) -> float:
        """Bytes that one decode step reads: all weights once, and the keys and values of all sequences."""
        return self.weights.read_bytes(sequences) + BYTES * sequences * context * self.key_values

    def step_operations(self, sequences: int, context: float) -> float:
        """Operations of one decode step."""
        return self.weights.operations(sequences, sequences) + 2 * sequences * context * self.scores_per_pair

    def prefill_operations(self, tokens: int) -> float:
        """Operations of a causal prompt without logits: each token sees half of the prompt on average."""
        return self.weights.operations(tokens, 0) + tokens * (tokens + 1) * self.scores_per_pair


def llama_costs(checkpoint: Path, quantization: str) -> LlamaCosts:
    """The costs of a checkpoint with this `--quantization`."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    return LlamaCosts(
        weights=model_costs(Checkpoint(checkpoint), config, torch.bfloat16, quantization),
        key_values=num_layers * 2 * config["num_key_value_heads"] * head_dim,
        scores_per_pair=num_layers * 2 * config["num_attention_heads"] * head_dim,
    )
