"""Fills embeds from tokens."""

from __future__ import annotations

from ..device.tensors import index_tensor
from ..execution.served_model import ServedModel
from ..protocol import EmbedTxt

MOST_ROWS = 8192
"""Vectors that are made at a time, to bound the memory for them."""


def embed_txt(served: ServedModel, batch: EmbedTxt) -> None:
    tokens, embeds = served.token_ids(batch.tokens, index_tensor(batch.embeds, len(served.embeds), "embed"))
    for first in range(0, len(tokens), MOST_ROWS):
        some = slice(first, first + MOST_ROWS)
        served.embeds.fill(embeds[some], served.model.embed(tokens[some]), tokens[some])
