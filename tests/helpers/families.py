"""A small model of each family, as settings of transformers' configuration."""

from __future__ import annotations

from typing import Any

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
