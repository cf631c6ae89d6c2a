"""Next-token logits at embeds: where `Sample`, `GetNextDist` and `GetLogprobs` begin."""

from __future__ import annotations

from torch import Tensor

from ..device.tensors import index_tensor, upload
from ..execution.served_model import ServedModel
from ..protocol import Array


def next_logits(served: ServedModel, embeds: Array) -> Tensor:
    """float32 [N, vocab_size], new memory."""
    rows = upload(index_tensor(embeds, len(served.embeds), "embed"), served.device)
    return served.model.logits(served.embeds.index_select(0, rows))
