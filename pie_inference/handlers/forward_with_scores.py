"""Runs the Transformer, and tells how much attention each key got."""

from __future__ import annotations

import numpy as np

from ..attention.position_masks import with_masks
from ..attention.torch.scoring import ScoringAttention
from ..device.tensors import download
from ..execution.direct import DirectExecutor
from ..execution.launched import PendingResult
from ..execution.served_model import ServedModel
from ..protocol import Array, ForwardWithScores, ForwardWithScoresResult


def forward_with_scores(served: ServedModel, batch: ForwardWithScores) -> PendingResult:
    config = served.model.config
    attention = ScoringAttention(served.cache, config.num_heads // served.ranks.size, config.attention, served.ranks)
    with served.adapters.beside(batch), served.states.beside(batch):
        DirectExecutor(served.model, attention, served.embeds).forward(with_masks(batch, served.cache))
    host = download(attention.scores())
    return PendingResult(lambda: ForwardWithScoresResult(_ends(batch), host.numpy()))


def _ends(batch: ForwardWithScores) -> Array:
    """Where the keys of each sequence end."""
    keys = np.concatenate(([0], np.cumsum(batch.kv_ends - batch.kv_begins, dtype=np.int64)))
    return keys[batch.kv_indptr].astype(np.int32)
