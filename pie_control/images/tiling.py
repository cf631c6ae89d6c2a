"""How a model's tiles lie on an image: arithmetic alone, with the rounding of transformers (Idefics3ImageProcessor).

An image is scaled so that its longer side has a certain length, then to whole tiles, and cut. Behind these tiles comes
the whole image, scaled to one tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from pie_inference.protocol import Vision

LARGEST_SIDE = 4096
"""Most pixels of a side of an image once it is scaled."""
MOST_PIXELS = 50_000_000
"""Most pixels of an image, as its header says: a decoded one takes some 15 bytes until it is scaled."""
MOST_RATIO = 200
"""Most by which one side may be longer than the other: a strip would become next to nothing when it is scaled."""


MOST_SCANNED = 1_000_000_000
"""Most pixels of all scans of a JPEG together: each goes over the whole image, and a usual progressive one has ten."""


class BadImage(ValueError):
    """An image that cannot be taken: why, and what to do."""


def check_size(width: int, height: int) -> None:
    """Raises BadImage for a size that is not taken."""
    if min(width, height) < 1:
        raise BadImage(f"an image of {width} x {height} pixels has none")
    if width * height > MOST_PIXELS:
        raise BadImage(f"the image has {width} x {height} pixels, more than {MOST_PIXELS} in all: send a smaller one")
    if max(width, height) > MOST_RATIO * min(width, height):
        raise BadImage(f"the image has {width} x {height} pixels: one side may have {MOST_RATIO} times the other's")


def check_scans(scans: int, width: int, height: int) -> None:
    """Raises BadImage for a JPEG whose scans would take very long to decode."""
    if scans * width * height > MOST_SCANNED:
        raise BadImage(
            f"the image has {scans} scans of {width} x {height} pixels: save it as a JPEG of one scan, or PNG"
        )


@dataclass(frozen=True)
class Tiling:
    """Sizes are widths and heights in pixels."""

    fitted: tuple[int, int]  # to the longer side
    cut: tuple[int, int] | None  # to whole tiles; None: the whole image is the only tile
    rows: int  # 0 if there is only one tile
    columns: int

    @property
    def tiles(self) -> int:
        return self.rows * self.columns + 1


def tiling_of(vision: Vision, width: int, height: int) -> Tiling:
    """The tiles of an image, whose sides are at least 1."""
    fitted = _fit(width, height, vision.longest_edge)
    if not vision.split:
        return Tiling(fitted, None, 0, 0)
    tile = vision.tile_size
    wide, high = _whole_tiles(*fitted, tile)
    if wide <= tile and high <= tile:
        return Tiling(fitted, (wide, high), 0, 0)
    return Tiling(fitted, (wide, high), high // tile, wide // tile)


def text_of(vision: Vision, tiling: Tiling, image: str) -> str:
    """What stands for the image in a text; `image` stands for the vectors of each tile."""
    layout = vision.layout
    if not tiling.rows:
        return layout.alone.replace("{image}", image)
    rows = (
        "".join(
            layout.tile.replace("{row}", str(row + 1)).replace("{column}", str(column + 1))
            for column in range(tiling.columns)
        )
        + layout.row_end
        for row in range(tiling.rows)
    )
    return ("".join(rows) + layout.whole).replace("{image}", image)


def _fit(width: int, height: int, longest: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        width, height = longest, _even(int(longest / ratio))
    else:
        width, height = _even(int(longest * ratio)), longest
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > LARGEST_SIDE:
        width, height = LARGEST_SIDE, int(LARGEST_SIDE / ratio)
    elif height > width and height > LARGEST_SIDE:
        width, height = int(LARGEST_SIDE * ratio), LARGEST_SIDE
    return max(width, 1), max(height, 1)


def _even(side: int) -> int:
    return side + side % 2


def _whole_tiles(width: int, height: int, tile: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        wide = _round_up(width, tile)
        return wide, max(_round_up(int(wide / ratio), tile), tile)
    high = _round_up(height, tile)
    return max(_round_up(int(high * ratio), tile), tile), high


def _round_up(side: int, tile: int) -> int:
    return -(-side // tile) * tile
