"""Next-token logits at embeds: where `Sample`, `NextDist` and `ScoreTokens` begin."""

from __future__ import annotations

from torch import Tensor

from ..protocol import Array
from ..served_model import ServedModel
from ..tensors import index_tensor, upload


def next_logits(served: ServedModel, embeds: Array) -> Tensor:
    """float32 [N, vocab_size], new memory."""
    rows = upload(index_tensor(embeds, len(served.embeds), "embed"), served.device)
    return served.model.logits(served.embeds.index_select(0, rows))
