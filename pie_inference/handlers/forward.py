"""Runs the Transformer."""

from __future__ import annotations

import numpy as np

from ..protocol import Forward
from ..served_model import ServedModel
from ..tensors import index_tensor, tensor


def forward(served: ServedModel, batch: Forward) -> None:
    inputs = index_tensor(batch.q_embeds, len(served.embeds), "embed").to(served.device)
    outputs = index_tensor(batch.out_embeds, len(served.embeds), "embed").to(served.device)
    keep = index_tensor(batch.out_rows, len(inputs), "row").to(served.device)
    positions = tensor(batch.q_positions, np.int64).to(served.device)
    plan = served.attention.plan(batch)
    hidden = served.model.forward(served.embeds.index_select(0, inputs), positions, plan, keep)
    served.embeds.index_copy_(0, outputs, hidden)
