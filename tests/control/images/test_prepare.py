"""Images become the tiles that transformers makes of them; what is no image is refused with words that help."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from pie_control.images.prepare import START_OF_SCAN, prepare
from pie_control.images.tiling import BadImage, text_of, tiling_of
from pie_inference.protocol import ImageLayout, Vision
from tests.helpers.vision import picture

VISION = Vision(
    tile_size=32,
    tile_embeds=4,
    longest_edge=96,
    split=True,
    resample=1,
    placeholder=0,
    layout=ImageLayout("<{row},{column}>{image}", "/", "|{image}|", "({image})"),
    layers=2,
    layer_tokens=4,
    tile_slots=4,
)


def reference(image: Image.Image, vision: Vision) -> Any:
    """Pixels [tiles, 3, S, S] before they are made into fractions, rows and columns, by transformers."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": vision.longest_edge},
        max_image_size={"longest_edge": vision.tile_size},
        do_image_splitting=vision.split,
        resample=vision.resample,
        do_rescale=False,
        do_normalize=False,
        return_row_col_info=True,
    )
    made = processor(image, return_tensors="np")
    return made["pixel_values"][0].astype(np.uint8), made["rows"][0][0], made["cols"][0][0]


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


SIZES = [(32, 32), (31, 33), (96, 96), (97, 50), (640, 480), (7, 1400), (1, 1), (1000, 5)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("changes", [{}, {"split": False}, {"longest_edge": 32}, {"longest_edge": 70, "resample": 3}])
def test_tiles_are_those_of_transformers(size: tuple[int, int], changes: dict[str, Any]) -> None:
    image, vision = picture(*size), replace(VISION, **changes)
    made = prepare(saved(image), vision)
    expected, rows, columns = reference(image, vision)
    tiles = np.frombuffer(b"".join(made.tiles), np.uint8).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(tiles, expected)
    tiling = tiling_of(vision, *size)
    assert (tiling.rows, tiling.columns, made.width, made.height) == (rows, columns, *size)
    assert tiling.tiles == len(made.tiles)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK"])
def test_other_colours_are_those_of_transformers(mode: str) -> None:
    image = picture(60, 40).convert(mode)
    data = saved(image, "JPEG" if mode == "CMYK" else "PNG")
    expected, *_ = reference(Image.open(io.BytesIO(data)), VISION)
    made = np.frombuffer(b"".join(prepare(data, VISION).tiles), np.uint8).reshape(-1, 32, 32, 3)
    np.testing.assert_array_equal(made.transpose(0, 3, 1, 2), expected)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_what_is_transparent_is_white_as_transformers_makes_it(mode: str) -> None:
    image = picture(60, 40).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    chosen: dict[str, dict[str, Any]] = {
        "P": {"transparency": bytes(range(256))},
        "RGB": {"transparency": image.convert("RGB").getpixel((5, 5))},
        "L": {"transparency": image.convert("L").getpixel((5, 5))},
    }
    data = saved(image.convert(mode), **chosen.get(mode, {}))
    expected, *_ = reference(Image.open(io.BytesIO(data)), VISION)
    made = np.frombuffer(b"".join(prepare(data, VISION).tiles), np.uint8).reshape(-1, 32, 32, 3)
    np.testing.assert_array_equal(made.transpose(0, 3, 1, 2), expected)


def test_a_photo_lies_as_its_camera_says() -> None:
    image = picture(60, 40)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    made = prepare(saved(image, "JPEG", exif=exif, quality=95), VISION)
    assert (made.width, made.height) == (40, 60)


def test_the_text_of_an_image_has_its_tiles_in_order() -> None:
    assert text_of(VISION, tiling_of(VISION, 96, 64), "*") == "<1,1>*<1,2>*<1,3>*/<2,1>*<2,2>*<2,3>*/|*|"
    assert text_of(VISION, tiling_of(replace(VISION, split=False), 96, 64), "*") == "(*)"


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says that it is large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def progressive(side: int, scans: int) -> bytes:
    """A progressive JPEG of little content that has so many scans beside the ten of its kind."""
    data = saved(Image.new("RGB", (side, side), 128), "JPEG", progressive=True, quality=30)
    last = data[data.rindex(START_OF_SCAN) : -2]
    return data[:-2] + last * scans + data[-2:]


BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no image of a known format: send PNG or JPEG"),
    "text": (b"<svg/>", "no image of a known format"),
    "another format": (saved(picture(9, 9), "GIF"), "no image of a known format"),
    "cut off": (saved(picture(90, 90))[:800], "the image is broken"),
    "cut off JPEG": (saved(picture(90, 90), "JPEG")[:900], "the image is broken"),
    "bomb": (bomb(8000, 8000), "8000 x 8000 pixels, more than 50000000 in all: send a smaller one"),
    "giant bomb": (bomb(100_000, 100_000), "more than 50000000"),
    "very many scans": (progressive(3000, 110), "has 120 scans of 3000 x 3000 pixels: save it as a JPEG of one scan"),
    "strip": (bomb(30_000, 100), "one side may have 200 times the other's"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_image_is_refused(name: str) -> None:
    data, message = BROKEN[name]
    with pytest.raises(BadImage, match=message):
        prepare(data, VISION)


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("decoded"))
    with pytest.raises(BadImage, match="pixels"):
        prepare(bomb(8000, 8000), VISION)
