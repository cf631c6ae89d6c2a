"""Fills embeds from tiles of images."""

from __future__ import annotations

import numpy as np
import torch

from ..device.tensors import index_tensor, upload
from ..errors import BatchError
from ..execution.served_model import ServedModel
from ..protocol import EmbedImg, check_indptr


def embed_img(served: ServedModel, batch: EmbedImg) -> None:
    vision = served.description.vision
    if served.images is None or vision is None:
        raise BatchError(f"model {served.description.name} takes no images")
    lengths = np.diff(batch.indptr)
    check_indptr(batch.indptr, len(batch.rows), len(batch.embeds), "indptr")
    if len(batch.firsts) != len(batch.rows):
        raise BatchError(f"{len(batch.firsts)} first vectors are given for {len(batch.rows)} commands")
    shape = (vision.tile_size, vision.tile_size, 3)
    if batch.tiles.shape[1:] != shape or batch.tiles.dtype != np.uint8:
        raise BatchError(f"tiles are bytes of shape {shape}, not {batch.tiles.dtype} of shape {batch.tiles.shape[1:]}")
    if batch.firsts.min(initial=0) < 0 or (batch.firsts + lengths).max(initial=0) > vision.tile_embeds:
        raise BatchError(f"a tile has {vision.tile_embeds} vectors")
    embeds = index_tensor(batch.embeds, len(served.embeds), "embed")
    index_tensor(batch.rows, len(batch.tiles), "tile")
    used, places = np.unique(batch.rows, return_inverse=True)  # a command that runs alone has the tiles of all
    starts = places * vision.tile_embeds + batch.firsts
    rows = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, lengths, strict=True)])
    vectors = served.images.encode(batch.tiles[used]).flatten(0, 1)
    chosen = vectors.index_select(0, upload(torch.from_numpy(rows), served.device))
    served.embeds.index_copy_(0, upload(embeds, served.device), chosen)
