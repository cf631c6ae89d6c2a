"""Images for random programs, with what a model sees in them: a worker is given the tiles that a server makes of a
file, and the reference is worked out from the file by other code."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pillow
from torch import Tensor

from pie_control.calls.input_image.image import Image
from pie_control.images.prepare import prepare
from pie_inference.protocol import Vision
from pie_inference.testing.small_vision import VISION
from tests.helpers.vision import load_image_processor, picture


@dataclass(frozen=True, eq=False)
class Picture:
    """An image of a program."""

    data: bytes  # a file
    image: Image  # as calls take it
    vectors: Sequence[Any]  # that embeds get


def files() -> list[bytes]:
    """PNG and JPEG: wide and high ones, a strip, what is smaller than a tile, without colors, and with transparency."""
    return [
        _file(picture(100, 70), "PNG"),
        _file(picture(45, 90, 1), "JPEG"),
        _file(picture(7, 9, 2), "PNG"),
        _file(picture(120, 11, 3), "JPEG"),
        _file(picture(33, 32, 4).convert("L"), "JPEG"),
        _file(picture(20, 64, 5).convert("RGBA"), "PNG"),
    ]


def _file(image: Pillow.Image, kind: str) -> bytes:
    data = io.BytesIO()
    image.save(data, kind)
    return data.getvalue()


def image_of(file: bytes, vision: Vision) -> Image:
    return Image(vision, prepare(file, vision).tiles)


@cache
def fake_pictures() -> Sequence[Picture]:
    """As the fake model sees them: a number for each vector, of its tile and its place."""
    found = []
    for file in files():
        image = image_of(file, VISION)
        vectors = [zlib.crc32(tile) * 4 + place for tile in image.tiles for place in range(VISION.tile_embeds)]
        found.append(Picture(file, image, vectors))
    return found


def real_pictures(checkpoint: Path, vision: Vision) -> Sequence[Picture]:
    """As transformers' processor and its model in float64 see them. `vision`: of a worker."""
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: Any = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float64)
    processor = load_image_processor(checkpoint)
    assert model.config.vision_config._attn_implementation == "sdpa", "the plainest one rounds to float32"
    return [Picture(file, image_of(file, vision), _seen(model.eval().model, processor, file)) for file in files()]


def _seen(model: Any, processor: Any, file: bytes) -> list[Tensor]:
    pixels = processor([[Pillow.open(io.BytesIO(file)).convert("RGB")]], return_tensors="pt")
    with torch.inference_mode():
        tiles = model.get_image_features(pixels["pixel_values"].double(), pixels["pixel_attention_mask"]).pooler_output
    return [vector for tile in tiles for vector in tile.view(-1, tile.shape[-1])]
