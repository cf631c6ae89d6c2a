"""Takes tiles of images through layers of the vision tower, and fills embeds from those that are through."""

from __future__ import annotations

import numpy as np
import torch

from ..device.tensors import index_tensor, upload
from ..errors import BatchError
from ..execution.image_encoder import Layers
from ..execution.served_model import ServedModel
from ..protocol import EmbedImg, Vision, check_indptr


def embed_img(served: ServedModel, batch: EmbedImg) -> None:
    vision = served.description.vision
    if served.images is None or vision is None:
        raise BatchError(f"model {served.description.name} takes no images")
    _check(batch, vision)
    embeds = index_tensor(batch.embeds, len(served.embeds), "embed")
    parts = _parts(batch)
    found = served.images.run(parts, batch.tiles)
    vectors = []
    for n, part in enumerate(parts):  # nothing is written before all is read, and all has gone well
        if part.end < vision.layers:
            served.images.keep(int(batch.slots[n]), found[part])
        else:
            first, count = int(batch.firsts[n]), int(batch.indptr[n + 1] - batch.indptr[n])
            vectors.append(found[part][first : first + count])
    if vectors:
        served.embeds.vectors.index_copy_(0, upload(embeds, served.device), torch.cat(vectors))


def _parts(batch: EmbedImg) -> list[Layers]:
    columns = np.where(batch.begins == 0, batch.rows, batch.slots), batch.begins, batch.ends
    return [Layers(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _check(batch: EmbedImg, vision: Vision) -> None:
    """Raises BatchError for what would go wrong, or would go through the wrong layers."""
    count, lengths = len(batch.rows), np.diff(batch.indptr)
    check_indptr(batch.indptr, count, len(batch.embeds), "indptr")
    for name in ("begins", "ends", "slots", "firsts"):
        if len(getattr(batch, name)) != count:
            raise BatchError(f"{len(getattr(batch, name))} {name} are given for {count} commands")
    shape = (vision.tile_size, vision.tile_size, 3)
    if batch.tiles.shape[1:] != shape or batch.tiles.dtype != np.uint8:
        raise BatchError(f"tiles are bytes of shape {shape}, not {batch.tiles.dtype} of shape {batch.tiles.shape[1:]}")
    if batch.firsts.min(initial=0) < 0 or (batch.firsts + lengths).max(initial=0) > vision.tile_embeds:
        raise BatchError(f"a tile has {vision.tile_embeds} vectors")
    if batch.begins.min(initial=0) < 0 or (batch.begins >= batch.ends).any() or (batch.ends > vision.layers).any():
        raise BatchError(f"a tile goes through some of {vision.layers} layers, in order")
    if lengths[batch.ends < vision.layers].any():
        raise BatchError("embeds are filled behind the last layer")
    index_tensor(batch.rows[batch.begins == 0], len(batch.tiles), "tile")
    index_tensor(batch.slots, vision.tile_slots, "tile slot")
