"""A small model of each family, as settings of transformers' configuration, and the checkpoint it writes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pie_inference.testing import byte_tokenizer
from testing.checkpoints import write_tokenizer

WINDOW = 24
HEADS = {"head_dim": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": WINDOW, "head_dim": 24}),
    "mistral without window": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2 with windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", HEADS),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 4.0, "head_dim": 16}
        | {"final_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 20, "head_dim": 16, "num_hidden_layers": 4}
        | {"sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "granite": (
        "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.0},
    ),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": WINDOW, "num_key_value_heads": 4}),
    "phi3 partly rotated": (
        "Phi3ForCausalLM",
        {"tie_word_embeddings": True, "original_max_position_embeddings": 256, "partial_rotary_factor": 0.75}
        | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3 + [1.5] * 3, "long_factor": [2.0] * 6}},
    ),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True, **HEADS},
    ),
    "qwen3 moe, some layers": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1], **HEADS},
    ),
}


def save_reference(folder: Path, architecture: str, **config: Any) -> Any:
    """Lets transformers write a checkpoint with random weights into `folder`; returns its model, in float32.

    The weights are numbers of bfloat16, so that serving in it does not change them.
    """
    import transformers
    from transformers.utils import logging

    quiet: Callable[[], None] = logging.disable_progress_bar
    quiet()
    kind = getattr(transformers, architecture)
    settings = {**SMALL, **config}
    model = kind._from_config(kind.config_class(**settings), attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(_random_reference(name, weight, generator).bfloat16())
    model.save_pretrained(folder)
    write_tokenizer(folder, settings["vocab_size"])
    return model


SMALL: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": byte_tokenizer.BEGIN,
    "eos_token_id": byte_tokenizer.END,
    "pad_token_id": None,
}


def _random_reference(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Norms are about 1 on top of what transformers starts with, which is 1, or 0 where it adds 1 itself."""
    noise = torch.randn(weight.shape, generator=generator)
    if "norm" in name:
        return weight + 0.1 * noise
    return noise * (0.5 if weight.dim() == 1 or "embed" in name else 1.5 * weight.shape[-1] ** -0.5)
