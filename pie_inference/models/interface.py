"""The interface between a model and the rest of the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..attention.interface import AttentionPlan
from ..ops.interface import Rotation
from .config import ModelConfig
from .vision import VisionTower


class Model(Protocol):
    """A decoder-only Transformer. Hidden vectors are in the model's dtype, positions and tokens int64."""

    config: ModelConfig
    vision: VisionTower | None
    """What turns images into vectors; None: the model takes no images."""
    capturable: bool
    """Whether a graph can record `forward`: its launches do not depend on numbers on the device."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [T] to vectors [T, hidden_size]."""

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: AttentionPlan,
        keep: Tensor,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Runs all layers over [T, hidden_size]; returns rows `keep` [O] of the result, after the last norm. `tokens`
        int32 [T] are those that became `hidden`; None unless `ModelConfig.by_token`."""

    def moves(self, distances: Tensor, dtype: torch.dtype) -> Sequence[Rotation]:
        """For each layer the rotation that moves keys by distances int64 [T] in positions, in `dtype`."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Outputs of `forward` [N, hidden_size] to next-token logits, float32 [N, vocab_size]."""
