"""Fills embeds from tokens."""

from __future__ import annotations

from ..device.tensors import index_tensor, upload
from ..execution.served_model import ServedModel
from ..protocol import EmbedText
from .token_references import resolve


def embed_text(served: ServedModel, batch: EmbedText) -> None:
    embeds = upload(index_tensor(batch.embeds, len(served.embeds), "embed"), served.device)
    served.embeds.index_copy_(0, embeds, served.model.embed(resolve(served, batch.tokens)))
