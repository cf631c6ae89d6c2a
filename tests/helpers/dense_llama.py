"""A Llama in float64, word by word from its definition: without pages, batches or kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from tests.helpers.adapters import merged
from tests.helpers.issue_order import NO_ADAPTERS, Held, Mask
from tests.helpers.undecided import Undecided

TEXT = "model.text_model."
"""Before the names of weights, in models that see."""
CLOSE = 1e-4
"""Logits that differ by less may come in another order in float32."""


def _text_weights(folder: Path) -> dict[str, Tensor]:
    """As a Llama names them."""
    whole = {name: weight.double() for name, weight in load_file(folder / "model.safetensors").items()}
    if not any(name.startswith(TEXT) for name in whole):
        return whole
    text = {name: weight for name, weight in whole.items() if name.startswith((TEXT, "lm_head."))}
    return {name.replace(TEXT, "model.", 1): weight for name, weight in text.items()}


class DenseLlama:
    """Implements `Arithmetic` for checkpoints of `make_checkpoint`, with its default sizes but for the layers, and for
    what is not vision in those of `make_vision_checkpoint`. An embed is a vector, a key the keys and values of all
    layers."""

    heads, kv_heads, dim, epsilon, theta = 4, 2, 16, 1e-5, 10_000.0
    draws_in_order = True

    def __init__(self, folder: Path, close: float = CLOSE, adapters: Mapping[str, Path] = NO_ADAPTERS) -> None:
        """`close`: of logits, see CLOSE. `adapters`: folders that `make_adapter` made, by name."""
        self.close = close
        self._weights = _text_weights(folder)
        self._adapted = {name: DenseLlama(folder) for name in adapters}
        for name, model in self._adapted.items():
            model._weights = merged(model._weights, adapters[name])
        self._layers = sum(name.endswith("q_proj.weight") for name in self._weights)

    def embed(self, token: int) -> Tensor:
        return self._weights["model.embed_tokens.weight"][token]

    def most_probable(self, output: Tensor) -> int:
        first, second = (output @ self._weights["lm_head.weight"].T).topk(2).values.tolist()
        if first - second < self.close:
            raise Undecided
        return int((output @ self._weights["lm_head.weight"].T).argmax())

    def logits(self, output: Tensor) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (output @ self._weights["lm_head.weight"].T).numpy()
        return found

    def state(self, output: Tensor) -> NDArray[np.float64]:
        found: NDArray[np.float64] = output.numpy()
        return found

    def run(
        self, context: Sequence[Held], inputs: Sequence[Held], mask: Mask | None = None, adapter: str = ""
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Keys are [layers, 2, kv_heads, dim] each."""
        return self._run(context, inputs, mask, adapter, [])

    def moved(self, key: Tensor, by: int) -> Tensor:
        keys, values = key.unbind(1)
        return torch.stack([self._rotate(keys, torch.full((len(keys),), by)), values], 1)

    def scores(self, context: Sequence[Held], inputs: Sequence[Held], adapter: str = "") -> list[float]:
        weights: list[Tensor] = []
        self._run(context, inputs, None, adapter, weights)
        found: list[float] = torch.stack(weights).mean((0, 1)).sum(0).tolist()
        return found

    def _run(
        self, context: Sequence[Held], inputs: Sequence[Held], mask: Mask | None, adapter: str, weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Adds the weights of attention of each layer, [heads, inputs, keys]."""
        if adapter:
            return self._adapted[adapter]._run(context, inputs, mask, "", weights)
        positions = torch.tensor([position for _, position in inputs])
        before = torch.tensor([position for _, position in context], dtype=torch.int64)
        visible = torch.cat([before < positions[:, None], torch.ones(len(inputs), len(inputs)).tril() > 0], 1)
        if mask is not None:
            visible = torch.tensor([list(row) for row in mask], dtype=torch.bool)
        hidden = torch.stack([value for value, _ in inputs])
        new = []
        for layer in range(self._layers):
            old = torch.stack([key[layer] for key, _ in context]) if context else torch.empty(0, 2, 2, 16)
            normed = self._norm(hidden, f"model.layers.{layer}.input_layernorm")
            queries, keys, values = (
                self._project(normed, layer, f"self_attn.{name}_proj").view(len(inputs), -1, self.dim) for name in "qkv"
            )
            new.append(torch.stack([self._rotate(keys, positions), values], 1))
            mixed = self._attend(self._rotate(queries, positions), torch.cat([old.double(), new[-1]]), visible, weights)
            hidden = hidden + self._project(mixed, layer, "self_attn.o_proj")
            normed = self._norm(hidden, f"model.layers.{layer}.post_attention_layernorm")
            gate, up = (self._project(normed, layer, f"mlp.{name}_proj") for name in ("gate", "up"))
            hidden = hidden + self._project(torch.nn.functional.silu(gate) * up, layer, "mlp.down_proj")
        return list(torch.stack(new, 1)), list(self._norm(hidden, "model.norm"))

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return (
            hidden * (hidden.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self._weights[f"{name}.weight"]
        )

    def _project(self, hidden: Tensor, layer: int, name: str) -> Tensor:
        return hidden @ self._weights[f"model.layers.{layer}.{name}.weight"].T

    def _rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        half = self.dim // 2
        inverse = 1.0 / self.theta ** (torch.arange(half).float() / half)  # which transformers has in float32
        angles = positions[:, None] * inverse.double()
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        left, right = vectors[..., :half], vectors[..., half:]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def _attend(self, queries: Tensor, keys_values: Tensor, visible: Tensor, told: list[Tensor]) -> Tensor:
        keys, values = (
            side.repeat_interleave(self.heads // self.kv_heads, 1) for side in (keys_values[:, 0], keys_values[:, 1])
        )
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * self.dim**-0.5
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()  # nothing is seen: zeros
        told.append(weights)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
