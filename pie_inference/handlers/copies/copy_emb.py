"""Copies embeds."""

from __future__ import annotations

from ...device.tensors import index_tensor, upload_together
from ...errors import BatchError
from ...execution.served_model import ServedModel
from ...protocol import CopyEmb


def copy_emb(served: ServedModel, batch: CopyEmb) -> None:
    if len(batch.source) != len(batch.target):
        raise BatchError(f"{len(batch.source)} embeds cannot be copied to {len(batch.target)}")
    indices = [index_tensor(embeds, len(served.embeds), "embed") for embeds in (batch.source, batch.target)]
    served.embeds.copy(*upload_together(indices, served.device))
