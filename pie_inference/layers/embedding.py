"""The layers that turn tokens into vectors, and vectors into logits."""

from __future__ import annotations

from torch import Tensor

from ..loading.weights import Block, WeightLoader


class TokenEmbedding:
    """A vector for each token. Every rank has the whole table."""

    def __init__(self, weights: WeightLoader, name: str, vocab_size: int, size: int) -> None:
        self._table = weights.tensor(f"{name}.weight", vocab_size, size)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [T] to [T, size]."""
        return self._table.index_select(0, tokens)


class LanguageHead:
    """The last product, which gives logits. Each rank has a share of the vocabulary."""

    def __init__(self, weights: WeightLoader, name: str, vocab_size: int, size: int) -> None:
        self._multiply = weights.linear([Block(name, vocab_size)], size, split="outputs", role="head")
        self._ranks = weights.ranks

    def __call__(self, hidden: Tensor) -> Tensor:
        """[N, size] to float32 [N, vocab_size]."""
        return self._ranks.all_gather(self._multiply(hidden)).float()
