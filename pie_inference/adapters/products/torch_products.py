"""Plain torch operations, for any device: one adapter after the other. They are the reference for kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..groups import Groups
from .interface import LayerLoras


class TorchProducts:
    """Implements `Products`."""

    capturable = False  # the host must know the rows of each adapter

    def add(self, results: Tensor, inputs: Tensor, groups: Groups, loras: LayerLoras) -> None:
        dtype = next(iter(loras.by_slot.values())).down.dtype if loras.by_slot else results.dtype
        chosen = inputs.index_select(0, groups.rows).to(dtype)
        changes = torch.zeros(len(chosen), results.shape[1], dtype=dtype, device=results.device)
        for slot, begin, end in groups.parts:
            if (lora := loras.by_slot.get(slot)) is not None:
                torch.mm(F.linear(chosen[begin:end], lora.down), lora.up, out=changes[begin:end])
        results.index_add_(0, groups.rows, changes.to(results.dtype))
