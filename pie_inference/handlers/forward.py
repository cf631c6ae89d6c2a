"""Runs the Transformer."""

from __future__ import annotations

from ..protocol import Forward
from ..served_model import ServedModel


def forward(served: ServedModel, batch: Forward) -> None:
    served.executor.forward(batch)
