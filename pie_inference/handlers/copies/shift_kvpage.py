"""Moves keys to other positions."""

from __future__ import annotations

import numpy as np
import torch

from ...device.tensors import tensor, upload
from ...errors import BatchError
from ...execution.served_model import ServedModel
from ...protocol import ShiftKvpage


def shift_kvpage(served: ServedModel, batch: ShiftKvpage) -> None:
    if served.description.fixed_positions:
        raise BatchError(f"tokens cannot be moved: {served.description.fixed_positions}")
    far = served.cache.distances(batch.slots, batch.positions)
    if far.any():
        dtype = torch.promote_types(served.cache.shape.dtype, torch.float32)
        moves = served.model.moves(upload(tensor(far, np.int64), served.device), dtype)
        served.cache.shift(batch.slots, batch.positions, moves)
