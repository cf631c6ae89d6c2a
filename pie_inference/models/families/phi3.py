"""Phi-3 and Phi-4-mini (Abdin et al. 2024): Llama with fused projections, LongRoPE and partly rotated heads.

Beyond its original context the model needs other rotary factors, which harm short texts. It is served with the short
factors and the original context, unless the operator asks for a longer one (`layers.rotary`).
"""

from __future__ import annotations

from ...layers.attention import Attention
from ...layers.shape import AttentionShape
from ...loading.weights import Block, WeightLoader
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import Decoder, pre_norm_decoder


def read(config: ConfigJson) -> ModelConfig:
    """Reads a config.json. Its window is for all layers; null: no window."""
    config = config.with_defaults(original_max_position_embeddings=4096, rms_norm_eps=1e-5)
    windows = [config.optional_whole("sliding_window")] * config.whole("num_hidden_layers")
    return ModelConfig.read(config, windows=windows, partly=True)


def fused_qkv(prefix: str, shape: AttentionShape) -> list[Block]:
    """The tensor PREFIX.qkv_proj: rows of queries, then keys, then values."""
    return stacked(f"{prefix}.qkv_proj", shape.widths)


def fused_gate_up(prefix: str, inner_size: int) -> list[Block]:
    """The tensor PREFIX.gate_up_proj: rows of gates, then of the factors that they multiply."""
    return stacked(f"{prefix}.gate_up_proj", (inner_size, inner_size))


def stacked(name: str, sizes: tuple[int, ...]) -> list[Block]:
    """A tensor as blocks of `sizes` rows, so that ranks can share each block."""
    return [Block(name, rows, sum(sizes[:place]), sum(sizes)) for place, rows in enumerate(sizes)]


def build(config: ModelConfig, weights: WeightLoader) -> Decoder:
    """Loads Phi3ForCausalLM."""

    def attention(index: int, prefix: str) -> Attention:
        return Attention(weights, index, prefix, config.heads, projections=fused_qkv)

    return pre_norm_decoder(config, weights, attention, projections=fused_gate_up)
