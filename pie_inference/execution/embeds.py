"""The pool of embeds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kv_cache.pages import lazy_zeros


class Embeds:
    """Each embed holds an input, or an output after the last norm. For a model whose layers ask for tokens, an embed
    also remembers the last token that filled it; outputs and images leave that as it is, as none of them is an input
    of such a model."""

    def __init__(self, vectors: Tensor, tokens: Tensor | None) -> None:
        """vectors: [num_embeds, hidden_size]; tokens: int32 [num_embeds]."""
        self.vectors, self.tokens = vectors, tokens

    @classmethod
    def make(cls, count: int, hidden_size: int, dtype: torch.dtype, device: torch.device, by_token: bool) -> Embeds:
        """`by_token`: `ModelConfig.by_token`."""
        tokens = torch.zeros(count, dtype=torch.int32, device=device) if by_token else None
        return cls(lazy_zeros((count, hidden_size), dtype, device), tokens)

    def __len__(self) -> int:
        return len(self.vectors)

    def fill(self, places: Tensor, vectors: Tensor, tokens: Tensor) -> None:
        """Puts inputs into places."""
        self.vectors.index_copy_(0, places, vectors)
        if self.tokens is not None:
            self.tokens.index_copy_(0, places, tokens.to(torch.int32))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Reads all sources before it writes."""
        self.vectors.index_copy_(0, target, self.vectors.index_select(0, source))
        if self.tokens is not None:
            self.tokens.index_copy_(0, target, self.tokens.index_select(0, source))

    def inputs(self, places: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors, and the tokens of which they were made if the model asks for them."""
        tokens = None if self.tokens is None else self.tokens.index_select(0, places)
        return self.vectors.index_select(0, places), tokens
