"""The text model of Gemma 3 (Gemma team 2025): Gemma 2 with normalized queries and keys instead of capped scores, five
layers with a window for each layer without one, and a different rotation for each of these two kinds of layers.

Folders of Gemma3ForConditionalGeneration have the same model beside a vision tower, which is not served.
"""

from __future__ import annotations

from ...errors import CheckpointError
from ...layers.attention import Attention
from ...layers.qk_norm import HeadNorm
from ...loading.weights import WeightLoader
from ..config_json import ConfigJson
from ..decoder import ROOT, Decoder
from ..rope_json import KINDS, read_rope
from . import gemma2

ROOTS = (ROOT, "language_model.model", "model.language_model")
"""Beginnings of the tensors' names, in text checkpoints and in those with images, in different versions."""
DEFAULTS = {
    "head_dim": 256,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "sliding_window": 4096,
    "vocab_size": 262208,
}
"""Defaults; checkpoints with images leave out keys that have these values."""


def read(config: ConfigJson) -> gemma2.Gemma2Config:
    """Reads a config.json, or its `text_config` if the model takes images; whether the head is the table is said
    outside of that."""
    tied = config.flag("tie_word_embeddings", True)
    config = config.within("text_config").with_defaults(**DEFAULTS)
    config.refuse("use_bidirectional_attention", "attn_logit_softcapping", "original_max_position_embeddings")
    _check_ignored(config)
    types = layer_types(config)
    local = ConfigJson(config.section("rope_parameters")).section("sliding_attention")
    parameters = {
        "full_attention": None,
        "sliding_attention": {"rope_theta": config.number("rope_local_base_freq", 10000.0), **local},
    }
    ropes = {kind: read_rope(config, config.whole("head_dim"), each) for kind, each in parameters.items()}
    fields = gemma2.gemma_fields(config, types)
    rope = tuple(ropes[kind] for kind in types)
    return gemma2.Gemma2Config.read(config, rope=rope, tie_embeddings=tied, **fields)


def _check_ignored(config: ConfigJson) -> None:
    """Raises CheckpointError for what transformers heeds in other families alone."""
    scaling, parameters = config.section("rope_scaling"), ConfigJson(config.section("rope_parameters"))
    if "type" in scaling and "rope_type" not in scaling:
        raise CheckpointError("config.json: rope_scaling has 'type', which Gemma 3 ignores: call it rope_type")
    if any(part.get("truncate") is False for part in (scaling, *map(parameters.section, KINDS))):
        raise CheckpointError("config.json: truncate false of rotary positions is ignored by Gemma 3: take it out")


def layer_types(config: ConfigJson) -> list[str]:
    """The type of each layer: every sixth has no window, unless the config.json says otherwise."""
    pattern = config.whole("sliding_window_pattern", 6)
    kinds = ("sliding_attention", "full_attention")
    return config.items("layer_types") or [
        kinds[layer % pattern == pattern - 1] for layer in range(config.whole("num_hidden_layers"))
    ]


def build(config: gemma2.Gemma2Config, weights: WeightLoader) -> Decoder:
    """Loads Gemma3ForCausalLM, or the text model of Gemma3ForConditionalGeneration."""
    root = next((root for root in ROOTS if f"{root}.norm.weight" in weights), ROOT)

    def layer(index: int, prefix: str) -> gemma2.SandwichLayer:
        norm = HeadNorm(weights, f"{prefix}.self_attn", config.heads, config.norm_eps, add_one=True)
        bias = config.attention_bias
        attention = Attention(weights, index, f"{prefix}.self_attn", config.heads, bias=bias, out_bias=bias, norm=norm)
        return gemma2.SandwichLayer(config, weights, prefix, attention)

    layers = [layer(index, f"{root}.layers.{index}") for index in range(config.num_layers)]
    return gemma2.gemma_decoder(config, weights, root, layers)
