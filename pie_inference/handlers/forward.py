"""Runs the Transformer."""

from __future__ import annotations

from ..execution.served_model import ServedModel
from ..protocol import Forward


def forward(served: ServedModel, batch: Forward) -> None:
    served.executor.forward(batch)
