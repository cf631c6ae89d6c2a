"""Bytes of an image to tiles of pixels. The only importer of Pillow; runs in a child process (`child.py`), as what it
reads comes from strangers."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

from pie_inference.protocol import Vision

from .messages import PreparedImage
from .tiling import MOST_PIXELS, BadImage, Tiling, check_scans, check_size, tiling_of

FORMATS = ("PNG", "JPEG")
START_OF_SCAN = b"\xff\xda"
"""A marker of JPEG that no scan contains."""


def prepare(data: bytes, vision: Vision) -> PreparedImage:
    """What transformers makes of an image for a model, but for the last step, which makes numbers of bytes. Raises
    BadImage."""
    image = _read(data)
    tiling = tiling_of(vision, *image.size)
    return PreparedImage(image.width, image.height, _tiles(image, tiling, vision))


def _read(data: bytes) -> Image.Image:
    """The image as it is meant to be looked at, in RGB."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of images that are strange, but can be read
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            check_size(*image.size)
            if image.format == "JPEG":
                check_scans(data.count(START_OF_SCAN), *image.size)
            image.load()
            return _on_white(ImageOps.exif_transpose(image) or image)
    except BadImage:
        raise
    except MemoryError:
        raise BadImage("the image takes more memory to decode than there is for it: send a smaller one") from None
    except UnidentifiedImageError:
        raise BadImage(f"the blob is no image of a known format: send {' or '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise BadImage(f"the image has more than {MOST_PIXELS} pixels: send a smaller one") from None
    except Exception as error:  # decoders raise anything for bytes that are broken
        raise BadImage(f"the image is broken: {error}") from None


def _on_white(image: Image.Image) -> Image.Image:
    """In RGB, over white where it is transparent."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _tiles(image: Image.Image, tiling: Tiling, vision: Vision) -> list[bytes]:
    size, resample = vision.tile_size, Image.Resampling(vision.resample)
    image = image.resize(tiling.fitted, resample)
    if tiling.cut is not None:
        image = image.resize(tiling.cut, resample)
    boxes = [
        (column * size, row * size, (column + 1) * size, (row + 1) * size)
        for row in range(tiling.rows)
        for column in range(tiling.columns)
    ]
    return [*(image.crop(box).tobytes() for box in boxes), image.resize((size, size), resample).tobytes()]
