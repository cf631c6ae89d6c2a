"""Runs a `Forward` batch kernel by kernel, whole or in pieces. `execution.graphs` has a faster way for small
batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ..adapters.adapters import Adapters
from ..attention.interface import AttentionBackend
from ..attention.ragged import check
from ..device.tensors import index_tensor, tensor, upload_together
from ..kv_cache.pages import KvCache
from ..models.interface import Model
from ..protocol import Forward
from ..recurrence.batches import Piece, pieces_of
from ..recurrence.states import States
from .embeds import Embeds


class Executor(Protocol):
    """Runs batches on a model and its embeds."""

    def forward(self, batch: Forward) -> None:
        """Runs the Transformer and writes its outputs to their embeds. Does not wait for a GPU. Raises BatchError."""


class DirectExecutor:
    """Implements `Executor` for any batch and device."""

    def __init__(self, model: Model, attention: AttentionBackend, embeds: Embeds) -> None:
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
        inputs, outputs, keep, positions = upload_together(indices, self._embeds.vectors.device)
        plan = self._attention.plan(batch)
        vectors, tokens = self._embeds.inputs(inputs)
        hidden = self._model.forward(vectors, positions, plan, keep, tokens)
        self._embeds.vectors.index_copy_(0, outputs, hidden)


class PiecewiseExecutor:
    """Implements `Executor` for a model that runs batches in pieces (`ModelConfig.cut`)."""

    def __init__(
        self, direct: Executor, model: Model, cache: KvCache, embeds: Embeds, adapters: Adapters, states: States
    ) -> None:
        self._direct, self._cut, self._cache, self._embeds = direct, model.config.cut, cache, embeds
        self._adapters, self._states = adapters, states

    def forward(self, batch: Forward) -> None:
        for _ in self.pieces(batch):
            pass

    def pieces(self, batch: Forward) -> Iterator[Piece]:
        """Runs a batch; yields each piece when it has run. Raises BatchError before the first one."""
        pieces = pieces_of(batch, self._cut)
        first = next(pieces)
        if first.batch is batch:
            self._direct.forward(batch)
            yield first
            return
        self._check(batch)
        for piece in (first, *pieces):
            with self._adapters.beside(piece.batch), self._states.piece(piece.batch):
                self._direct.forward(piece.batch)
            yield piece

    def _check(self, batch: Forward) -> None:
        """Nothing may go wrong behind the first piece: it has written over the states that it began with."""
        check(batch, self._cache.shape.page_size, self._cache.num_pages)
        index_tensor(batch.q_embeds, len(self._embeds), "embed")
        index_tensor(batch.out_embeds, len(self._embeds), "embed")
        index_tensor(batch.out_rows, len(batch.q_embeds), "row")
