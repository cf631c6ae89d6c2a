"""Runs a `Forward` batch kernel by kernel. `execution.graphs` has a faster way for decode batches."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from ..attention.interface import AttentionBackend
from ..device.tensors import index_tensor, tensor, upload_together
from ..models.interface import Model
from ..protocol import Forward


class Executor(Protocol):
    """Runs batches on a model and its embeds."""

    def forward(self, batch: Forward) -> None:
        """Runs the Transformer and writes its outputs to their embeds. Does not wait for a GPU. Raises BatchError."""


class DirectExecutor:
    """Implements `Executor` for any batch and device."""

    def __init__(self, model: Model, attention: AttentionBackend, embeds: Tensor) -> None:
        self._model = model
        self._attention = attention
        self._embeds = embeds

    def forward(self, batch: Forward) -> None:
        indices = [
            index_tensor(batch.q_embeds, len(self._embeds), "embed"),
            index_tensor(batch.out_embeds, len(self._embeds), "embed"),
            index_tensor(batch.out_rows, len(batch.q_embeds), "row"),
            tensor(batch.q_positions, np.int64),
        ]
        inputs, outputs, keep, positions = upload_together(indices, self._embeds.device)
        plan = self._attention.plan(batch)
        hidden = self._model.forward(self._embeds.index_select(0, inputs), positions, plan, keep)
        self._embeds.index_copy_(0, outputs, hidden)
