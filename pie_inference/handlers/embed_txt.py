"""Fills embeds from tokens."""

from __future__ import annotations

from ..device.tensors import index_tensor, upload
from ..execution.served_model import ServedModel
from ..protocol import EmbedTxt


def embed_txt(served: ServedModel, batch: EmbedTxt) -> None:
    embeds = upload(index_tensor(batch.embeds, len(served.embeds), "embed"), served.device)
    served.embeds.index_copy_(0, embeds, served.model.embed(served.token_ids(batch.tokens)))
