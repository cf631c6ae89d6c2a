"""The demo model's architecture: a lean Llama.

Grouped-query attention, RMSNorm, rotary embeddings, SwiGLU, tied embeddings. Parameter names are those of the Hugging
Face checkpoint, so that `state_dict()` is the file that ships. The class is for training; it has no key-value cache.
Evaluation loads the exported folder with `transformers`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the demo model; `head_dim * heads == hidden`."""

    vocab: int = 2048
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 768
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """`x`: [batch, length, hidden]; attention is causal over the whole row."""
        batch, length, _ = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, self.config.head_dim).transpose(1, 2)

        q = rotate(split(self.q_proj(x)), rotation)
        k = rotate(split(self.k_proj(x)), rotation)
        v = split(self.v_proj(x))
        groups = self.config.heads // self.config.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_eps)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        mixed: Tensor = x + self.self_attn(self.input_layernorm(x), rotation)
        output: Tensor = mixed + self.mlp(self.post_attention_layernorm(mixed))
        return output


class Decoder(nn.Module):
    """The part that checkpoints call `model.*`: from token ids to normalized hidden states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed_tokens(ids)
        rotation = rotary_table(self.config, ids.shape[1], x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, rotation)
        normalised: Tensor = self.norm(x)
        return normalised


class DemoLlama(nn.Module):
    """Decoder with a tied output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.apply(_initialise)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Sum of the cross entropy over the positions of `targets` that are not -100; both [batch, length]."""
        hidden = self.model(ids).flatten(0, 1)
        wanted = _wanted_first(targets.flatten())
        return F.cross_entropy(self.logits(hidden[wanted]).float(), targets.flatten()[wanted], reduction="sum")

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.model.embed_tokens.weight.T


def rotary_table(config: ModelConfig, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [length, head_dim], in the half-split layout of Hugging Face's Llama."""
    steps = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), config.rope_theta**-steps)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary embeddings to `x`: [batch, heads, length, head_dim]."""
    cosines, sines = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


def _wanted_first(targets: Tensor, multiple: int = 256) -> Tensor:
    """Indices of the targets that are not -100 and of some others, so that their count is a multiple of `multiple`.

    On a processor each new matrix shape costs the compilation of a kernel, so there should be few.
    """
    order = torch.argsort((targets == -100).to(torch.uint8), stable=True)
    count = int((targets != -100).sum())
    return order[: -(-count // multiple) * multiple]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
