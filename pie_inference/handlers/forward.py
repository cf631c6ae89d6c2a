"""Runs the Transformer."""

from __future__ import annotations

import numpy as np

from ..protocol import Forward
from ..served_model import ServedModel
from ..tensors import index_tensor, tensor, upload


def forward(served: ServedModel, batch: Forward) -> None:
    device = served.device
    inputs = upload(index_tensor(batch.q_embeds, len(served.embeds), "embed"), device)
    outputs = upload(index_tensor(batch.out_embeds, len(served.embeds), "embed"), device)
    keep = upload(index_tensor(batch.out_rows, len(inputs), "row"), device)
    positions = upload(tensor(batch.q_positions, np.int64), device)
    plan = served.attention.plan(batch)
    hidden = served.model.forward(served.embeds.index_select(0, inputs), positions, plan, keep)
    served.embeds.index_copy_(0, outputs, hidden)
