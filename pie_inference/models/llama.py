"""Llama (Touvron et al. 2023): pre-norm Transformer with rotary positions, grouped queries and gated feed-forward."""

from __future__ import annotations

from torch import Tensor

from ..attention.interface import AttentionPlan
from ..layers.mlp import GatedMlp
from ..layers.norm import RmsNorm
from ..layers.rotary import Rotary
from ..ops.interface import Rotation
from ..ranks import share
from ..weights import Block, WeightLoader
from .config import ModelConfig


class LlamaAttention:
    """Attention of one layer: queries, keys and values in one product."""

    def __init__(self, config: ModelConfig, weights: WeightLoader, layer: int, prefix: str) -> None:
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        outs = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        blocks = [Block(f"{prefix}.{part}_proj", rows) for part, rows in outs.items()]
        bias = config.attention_bias
        self._qkv = weights.linear(blocks, config.hidden_size, bias=bias, split="outputs")
        self._out = weights.linear(
            [Block(f"{prefix}.o_proj", config.hidden_size)], outs["q"], bias=bias, split="inputs"
        )
        self._heads = share(weights.ranks, heads, "attention heads")
        self._kv_heads = share(weights.ranks, kv_heads, "key-value heads")
        self._layer, self._dim, self._ops = layer, dim, weights.ops

    def __call__(self, rows: Tensor, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        qkv = self._qkv(rows).view(len(rows), -1, self._dim)
        self._ops.rotate_(qkv[:, : self._heads + self._kv_heads], rotation)
        mixed = attention.attend(self._layer, qkv[:, : self._heads], qkv[:, self._heads :])
        return self._out(mixed)


class LlamaLayer:
    """One Transformer layer."""

    def __init__(self, config: ModelConfig, weights: WeightLoader, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        size, inner, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        self._attention_norm = RmsNorm(weights, f"{prefix}.input_layernorm", size, eps)
        self._attention = LlamaAttention(config, weights, layer, f"{prefix}.self_attn")
        self._mlp_norm = RmsNorm(weights, f"{prefix}.post_attention_layernorm", size, eps)
        self._mlp = GatedMlp(weights, f"{prefix}.mlp", size, inner, bias=config.mlp_bias)

    def __call__(self, hidden: Tensor, change: Tensor | None, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        """Adds `change`, what the layer before computed, and this layer's attention to the residual stream `hidden`;
        returns what is still to be added."""
        mixed = self._attention(self._attention_norm.after_adding(hidden, change), rotation, attention)
        return self._mlp(self._mlp_norm.after_adding(hidden, mixed))


class Llama:
    """Implements `Model` for LlamaForCausalLM checkpoints."""

    def __init__(self, config: ModelConfig, weights: WeightLoader) -> None:
        self.config = config
        size, vocab, rope = config.hidden_size, config.vocab_size, config.rope
        self._rotary = Rotary(rope.type, rope.theta, config.head_dim, rope.parameters, weights.device)
        self._embedding = weights.tensor("model.embed_tokens.weight", vocab, size)
        self._layers = [LlamaLayer(config, weights, layer) for layer in range(config.num_layers)]
        self._norm = RmsNorm(weights, "model.norm", size, config.norm_eps)
        head = Block("model.embed_tokens" if config.tie_embeddings else "lm_head", vocab)
        self._head = weights.linear([head], size, split="outputs")
        self._ranks = weights.ranks

    def embed(self, tokens: Tensor) -> Tensor:
        return self._embedding.index_select(0, tokens)

    def forward(self, hidden: Tensor, positions: Tensor, attention: AttentionPlan, keep: Tensor) -> Tensor:
        rotation = self._rotary.at(positions, hidden.dtype)
        change = None
        for layer in self._layers:
            change = layer(hidden, change, rotation, attention)
        kept = hidden.index_select(0, keep)
        return self._norm.after_adding(kept, None if change is None else change.index_select(0, keep))

    def logits(self, hidden: Tensor) -> Tensor:
        return self._ranks.gather(self._head(hidden)).float()
