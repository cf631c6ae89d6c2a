"""Log-probabilities of given tokens at each embed."""

from __future__ import annotations

import numpy as np
import torch

from ..protocol import NextLogprobs, ScoreTokens
from ..served_model import ServedModel
from ..tensors import index_tensor
from .logits import next_logits


def score_tokens(served: ServedModel, batch: ScoreTokens) -> NextLogprobs:
    tokens = index_tensor(batch.tokens, served.description.vocab_size, "token").to(served.device)
    rows = torch.from_numpy(np.repeat(np.arange(len(batch.embeds)), np.diff(batch.indptr))).to(served.device)
    logits = next_logits(served, batch.embeds)
    return NextLogprobs((logits[rows, tokens] - logits.logsumexp(-1)[rows]).cpu().numpy())
