"""Tokens that a batch names by the token slot into which an earlier `Sample` put them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import index_tensor, upload
from ..execution.served_model import ServedModel
from ..protocol import Array


def resolve(served: ServedModel, tokens: Array) -> Tensor:
    """Token ids int64 on the model's device; -(s + 1) stands for what is in token slot s. Raises BatchError."""
    references = np.flatnonzero(tokens < 0)
    literal = tokens.copy()
    literal[references] = 0
    resolved = upload(index_tensor(literal, served.description.vocab_size, "token"), served.device)
    if len(references):
        slots = upload(index_tensor(-1 - tokens[references], len(served.tokens), "token slot"), served.device)
        resolved[upload(torch.from_numpy(references), served.device)] = served.tokens[slots]
    return resolved
