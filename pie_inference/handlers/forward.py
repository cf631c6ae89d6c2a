"""Runs the Transformer."""

from __future__ import annotations

from ..attention.position_masks import with_masks
from ..execution.served_model import ServedModel
from ..protocol import Forward


def forward(served: ServedModel, batch: Forward) -> None:
    with served.adapters.beside(batch), served.states.beside(batch):
        served.executor.forward(with_masks(batch, served.cache))
