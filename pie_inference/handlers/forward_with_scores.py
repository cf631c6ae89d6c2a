"""Runs the Transformer, and tells how much attention each key got."""

from __future__ import annotations

import numpy as np
import torch

from ..attention.page_tables import ranges
from ..attention.position_masks import with_masks
from ..attention.torch.scoring import ScoringAttention
from ..device.tensors import download, upload
from ..execution.direct import DirectExecutor, PiecewiseExecutor
from ..execution.launched import Faults, PendingResult, without_numbers
from ..execution.served_model import ServedModel
from ..protocol import Array, Forward, ForwardWithScores, ForwardWithScoresResult


def forward_with_scores(served: ServedModel, batch: ForwardWithScores) -> PendingResult:
    config = served.model.config
    num_heads, _ = config.heads_of(served.ranks)
    attention = ScoringAttention(served.cache, num_heads, config.attention, served.ranks)
    direct = DirectExecutor(served.model, attention, served.embeds)
    executor = PiecewiseExecutor(direct, served.model, served.cache, served.embeds, served.adapters, served.states)
    ends, device = _ends(batch), served.device
    found = torch.zeros(int(ends[-1]), dtype=torch.float32, device=device)
    with served.adapters.beside(batch), served.states.beside(batch):
        for piece in executor.pieces(with_masks(batch, served.cache)):
            keys = ranges(ends[list(piece.sequences)], np.diff(_ends(piece.batch)))
            found[upload(torch.from_numpy(keys), device)] += attention.scores()
    host = download(found)

    def faults() -> Faults:
        wrong = np.flatnonzero(np.isnan(host.numpy()))
        return without_numbers(np.searchsorted(ends, wrong, side="right") - 1)

    return PendingResult(lambda: ForwardWithScoresResult(ends, host.numpy()), faults)


def _ends(batch: Forward) -> Array:
    """Where the keys of each sequence end."""
    keys = np.concatenate(([0], np.cumsum(batch.kv_ends - batch.kv_begins, dtype=np.int64)))
    return keys[batch.kv_indptr].astype(np.int32)
