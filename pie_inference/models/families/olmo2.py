"""OLMo 2 (OLMo team 2024): norms after attention and feed-forward instead of before them; queries and keys normalized
over all heads together."""

from __future__ import annotations

from torch import Tensor

from ...attention.interface import AttentionPlan
from ...layers.attention import Attention
from ...layers.mlp import GatedMlp
from ...layers.norm import RmsNorm
from ...layers.qk_norm import WidthNorm
from ...loading.weights import WeightLoader
from ...ops.interface import Rotation
from ..config import ModelConfig
from ..config_json import ConfigJson
from ..decoder import Decoder, plain_decoder


def read(config: ConfigJson) -> ModelConfig:
    """Reads a config.json."""
    return ModelConfig.read(config.with_defaults(rms_norm_eps=1e-5))


class PostNormLayer:
    """x + norm(attention(x)), then x + norm(feed_forward(x))."""

    capturable = True

    def __init__(self, config: ModelConfig, weights: WeightLoader, index: int, prefix: str) -> None:
        size, inner, eps, bias = config.hidden_size, config.intermediate_size, config.norm_eps, config.attention_bias
        attention = f"{prefix}.self_attn"
        norm = WidthNorm(weights, attention, config.heads, eps)
        self._attention = Attention(weights, index, attention, config.heads, bias=bias, out_bias=bias, norm=norm)
        self._attention_norm = RmsNorm(weights, f"{prefix}.post_attention_layernorm", size, eps)
        self._mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, activation=config.activation)
        self._mlp_norm = RmsNorm(weights, f"{prefix}.post_feedforward_layernorm", size, eps)

    def __call__(self, hidden: Tensor, change: Tensor | None, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        if change is not None:
            hidden.add_(change)
        hidden.add_(self._attention_norm(self._attention(hidden, rotation, attention)))
        return self._mlp_norm(self._mlp(hidden))


def build(config: ModelConfig, weights: WeightLoader) -> Decoder:
    """Loads Olmo2ForCausalLM."""
    return plain_decoder(config, weights, lambda index, prefix: PostNormLayer(config, weights, index, prefix))
