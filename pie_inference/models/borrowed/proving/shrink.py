"""A small configuration of the same kind: its fields are made small by their names, one layer of each kind is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..code import text_of

LAYERS = 4
"""Layers that are left at least, so that a period of windows or experts is among them."""
MOST_LAYERS = 16

_EXPERTS = "num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_experts_per_layer|zero_expert_num"
_CHOSEN = "num_experts_per_tok|moe_topk|top_k_experts|moe_k|moe_router_topk|moe_top_k|num_experts_per_token"
_SHARED = "n_group|topk_group|n_shared_experts|num_shared_experts|moe_num_shared_experts|num_expert_group"
_WIDTH = "n_embd|hidden_size|d_model|n_embed|embed_dim|hidden_dim|word_embed_proj_dim|emb_dim|d_embed|dim_model"
_INNER = r".*intermediate_size|.*ffn_dim|n_inner|d_inner|ffn_hidden_size|mlp_dim|d_ff|.*_ffn_hidden_size"
_HEADS = r"num_attention_heads|n_head|n_heads|num_heads|attention_heads|.*_num_attention_heads"
_HEAD_DIM = "head_dim|v_head_dim|attention_head_dim|d_kv|kv_channels|swa_head_dim|swa_v_head_dim|qk_nope_head_dim"
_POSITIONS = "max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length"
_WINDOW = "sliding_window|local_attention|attention_window_size|window_size|sliding_window_size|swa_window"

SMALL: Mapping[str, int] = {
    "vocab_size|vocab_size_per_layer_input": 256,
    "hidden_size_per_layer_input": 8,
    _HEADS: 4,
    _WIDTH: 64,
    _INNER: 96,
    _HEAD_DIM: 16,
    "global_head_dim": 32,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim|linear_value_head_dim": 16,
    "mamba_n_heads|mamba_num_heads|n_mamba_heads": 8,
    "mamba_d_head|mamba_head_dim|mamba_headdim": 16,
    "mamba_d_state|ssm_state_size": 16,
    "mamba_chunk_size|chunk_size|block_size": 16,
    "qk_rope_head_dim": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "rotary_dim": 8,
    "num_layers_per_stack": 4,
    _EXPERTS: 8,
    _CHOSEN: 2,
    _SHARED: 1,
    _WINDOW: 11,
    _POSITIONS: 512,
}
"""The value for the fields whose whole name fits the pattern; the first pattern decides."""

BY_LAYER = (
    *("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "activation_sparsity_pattern"),
    "attention_layers",
)
"""Fields that say the kind of each layer."""

OF_TEXT = {"vocab_size": "vocab_size", "out_hidden_size": "hidden_size"}
"""Fields by which other parts of a model may say a size of its text model, and that one's field."""

_KV_HEADS = r"num_key_value_heads|n_head_kv|num_kv_heads|n_kv_heads|.*_num_key_value_heads|num_global_key_value_heads"
_COUNT = r"num_hidden_layers|n_layer|n_layers|num_layers"
TOKEN = 5


def shrink(config: Any) -> dict[str, Any]:
    """The values of a small configuration of the same class; of a model of more than text, its text model is small."""
    text = text_of(config)
    if text is not config:
        key = next(name for name in config.sub_configs if getattr(config, name) is text)
        return _with_text(config.to_dict(), key, shrink(text))
    layers = _layers(config)
    values = config.to_dict()
    count = values.get("num_hidden_layers", getattr(config, "num_hidden_layers", None))
    small = {name: _small(name, value, values, count, layers) for name, value in values.items()}
    if values.get("head_dim") and values["head_dim"] == values.get("qk_rope_head_dim"):
        small["head_dim"] = small["qk_rope_head_dim"]
    if "attention_hidden_size" in values:
        small["attention_hidden_size"] = 2 * small["hidden_size"]
        small["attention_head_dim"] = small["attention_hidden_size"] // small["num_attention_heads"]
    if {"expand", "num_heads", "head_dim", "state_size"} <= values.keys():
        small["num_heads"] = int(small["expand"] * small["hidden_size"]) // small["head_dim"]
    if values.get("num_kv_shared_layers"):
        small["num_kv_shared_layers"] = sum(layer >= count - values["num_kv_shared_layers"] for layer in layers)
    if "per_layer_config" in values:
        small["per_layer_config"] = _small_exceptions(values, layers)
    if "attention_types" in values:
        small["attention_types"] = [[small["attention_layers"], 1]]
    if "mamba_d_ssm" in values:
        small["mamba_d_ssm"] = small["mamba_n_heads"] * small["mamba_d_head"]
    return {name: value for name, value in small.items() if name not in ("transformers_version", "dtype")}


def _with_text(values: dict[str, Any], key: str, small: dict[str, Any]) -> dict[str, Any]:
    """The values of a model of more than text with a small text model. What its other parts say of the text model's
    sizes is what that has."""
    text = values[key]
    sizes = {(name, text[own]): small[own] for name, own in OF_TEXT.items() if own in text}

    def fitting(part: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in part.items() if isinstance(value, int)}
        return {**part, **{name: sizes[name, value] for name, value in own.items() if (name, value) in sizes}}

    others = {name: fitting(part) for name, part in values.items() if isinstance(part, dict) and name != key}
    return {**fitting(values), **others, key: small}


def _layers(config: Any) -> Sequence[int]:
    """The first layers, so many that each kind is among them. Where the last ones share keys of others, it is the first
    of each kind on both sides."""
    count, shared = int(config.num_hidden_layers), getattr(config, "num_kv_shared_layers", 0)
    columns: list[list[Any]] = [
        own for own in (getattr(config, name, None) for name in BY_LAYER) if isinstance(own, list)
    ]
    if shared:
        found: dict[tuple[Any, ...], int] = {}
        for layer in range(count):
            found.setdefault((layer >= count - shared, *(kinds[layer] for kinds in columns)), layer)
        return list(found.values())
    least = 1
    for kinds in columns:
        least = max(least, *(kinds.index(kind) + 1 for kind in set(kinds)))
        if kinds.count("hybrid") > 1:  # these share weights
            least = max(least, kinds.index("hybrid", kinds.index("hybrid") + 1) + 1)
    first_dense = getattr(config, "first_k_dense_replace", None) or 0
    least = max(least, first_dense + 1 if isinstance(first_dense, int) else 1)
    return range(min(max(LAYERS, least), MOST_LAYERS, count))


def _small_exceptions(values: Mapping[str, Any], layers: Sequence[int]) -> dict[int, Any]:
    """What is different in some of the layers."""
    found: dict[int, dict[str, Any]] = {}
    for place, layer in enumerate(layers):
        for name, value in values["per_layer_config"].get(str(layer), {}).items():
            wider = "global_head_dim" if name == "head_dim" else name
            found.setdefault(place, {})[name] = _small(wider, value, values, None, layers)
    return found


def _small(name: str, value: Any, values: Mapping[str, Any], count: Any, layers: Sequence[int]) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if name.startswith("rope_") and isinstance(value, dict):
        return _small_rotation(value, 4 if values.get("qk_rope_head_dim") else 8)
    if name == "linear_attn_config":
        return {own: _small(f"linear_{own}", each, values, None, layers) for own, each in value.items()}
    if name.endswith("token_id"):
        return [TOKEN] if isinstance(value, list) else min(value, TOKEN)
    if isinstance(value, list):
        return [_small(name, value[each], values, None, layers) for each in layers] if len(value) == count else value
    if not isinstance(value, int):
        return value
    if re.fullmatch(_COUNT, name):
        return len(layers)
    if re.fullmatch(_KV_HEADS, name):
        return _small_kv_heads(value, values)
    return next((min(small, value) for names, small in SMALL.items() if re.fullmatch(names, name)), value)


def _small_kv_heads(value: int, values: Mapping[str, Any]) -> int:
    heads = next((values[name] for name in values if re.fullmatch(_HEADS, name)), None)
    return min(4 if value == heads else 2, value)


def _small_rotation(value: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Parameters of rotary positions, with as many factors as a small head has pairs: at `most` so many."""
    pairs = max(1, int(most * (value.get("partial_rotary_factor") or 1.0)))
    small: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, dict):
            small[name] = _small_rotation(each, most)
        elif name in ("short_factor", "long_factor") and isinstance(each, list):
            small[name] = each[:pairs]
        else:
            small[name] = _small_sections(each, pairs) if name == "mrope_section" else each
    return small


def _small_sections(sections: Sequence[int], pairs: int) -> list[int]:
    """How many of the pairs of a small head are turned by the time, the row and the column of an image, in the order of
    `sections`: two of these are alike."""
    other = next(place for place, each in enumerate(sections) if sections.count(each) == 1 or place == 2)
    small = [pairs * 3 // 8] * 3
    small[other] = pairs - 2 * small[other]
    return small
