"""Llama (Touvron et al. 2023): pre-norm Transformer with rotary positions, grouped queries and gated feed-forward."""

from __future__ import annotations

from torch import Tensor

from ..attention.interface import AttentionPlan
from ..layers.linear import load_linear, make_linear
from ..layers.mlp import GatedMlp
from ..layers.norm import RmsNorm
from ..layers.rotary import Rotary, Rotation
from ..weights import WeightLoader
from .config import ModelConfig


class LlamaAttention:
    """Attention of one layer: queries, keys and values in one product."""

    def __init__(self, config: ModelConfig, weights: WeightLoader, layer: int, prefix: str) -> None:
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        names = [f"{prefix}.{part}_proj" for part in "qkv"]
        outs = [heads * dim, kv_heads * dim, kv_heads * dim]
        self._qkv = load_linear(weights, names, outs, config.hidden_size, config.attention_bias)
        self._out = load_linear(weights, [f"{prefix}.o_proj"], [config.hidden_size], outs[0], config.attention_bias)
        self._layer, self._heads, self._kv_heads, self._dim = layer, heads, kv_heads, dim

    def __call__(self, hidden: Tensor, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        qkv = self._qkv(hidden).view(len(hidden), -1, self._dim)
        rotation.apply_(qkv[:, : self._heads + self._kv_heads])
        mixed = attention.attend(self._layer, qkv[:, : self._heads], qkv[:, self._heads :])
        return self._out(mixed)


class LlamaLayer:
    """One Transformer layer."""

    def __init__(self, config: ModelConfig, weights: WeightLoader, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        size, inner = config.hidden_size, config.intermediate_size
        self._attention_norm = RmsNorm(weights.tensor(f"{prefix}.input_layernorm.weight", size), config.norm_eps)
        self._attention = LlamaAttention(config, weights, layer, f"{prefix}.self_attn")
        self._mlp_norm = RmsNorm(weights.tensor(f"{prefix}.post_attention_layernorm.weight", size), config.norm_eps)
        self._mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, config.mlp_bias)

    def add_to_(self, hidden: Tensor, rotation: Rotation, attention: AttentionPlan) -> None:
        """Adds what the layer computes to the residual stream."""
        hidden.add_(self._attention(self._attention_norm(hidden), rotation, attention))
        hidden.add_(self._mlp(self._mlp_norm(hidden)))


class Llama:
    """Implements `Model` for LlamaForCausalLM checkpoints."""

    def __init__(self, config: ModelConfig, weights: WeightLoader) -> None:
        self.config = config
        embedding_shape = (config.vocab_size, config.hidden_size)
        self._rotary = Rotary(
            config.rope.type, config.rope.theta, config.head_dim, config.rope.parameters, weights.device
        )
        self._embedding = weights.tensor("model.embed_tokens.weight", *embedding_shape)
        self._layers = [LlamaLayer(config, weights, layer) for layer in range(config.num_layers)]
        self._norm = RmsNorm(weights.tensor("model.norm.weight", config.hidden_size), config.norm_eps)
        tied = config.tie_embeddings
        self._head = make_linear(self._embedding if tied else weights.tensor("lm_head.weight", *embedding_shape))

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embedding.index_select(0, tokens)

    def forward(self, hidden: Tensor, positions: Tensor, attention: AttentionPlan, keep: Tensor) -> Tensor:
        rotation = self._rotary.at(positions, hidden.dtype)
        for layer in self._layers:
            layer.add_to_(hidden, rotation, attention)
        return self._norm(hidden.index_select(0, keep))

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden).float()
