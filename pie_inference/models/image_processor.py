"""Reads how a checkpoint's images are prepared: its preprocessor_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from ..json_files import read_json
from ..protocol import Vision
from .config_json import ConfigJson, is_number
from .vision import VisionConfig

FILE, COMBINED_FILE = "preprocessor_config.json", "processor_config.json"
STEPS = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
FILTERS = (0, 1, 2, 3, 4, 5)
"""Ways of scaling images, by Pillow's numbers."""
LANCZOS = 1
TILE_SLOTS = 16
"""Tiles that are under way at a time, between their first layer and their last, which bounds the memory for what is
between two layers (SmolVLM: 3 MB each in float32)."""
SHARE_OF_WAVE = 4
"""A layer of a tile, which goes as a whole, counts as one part in this many of the most input tokens of a wave at most:
so that there is room for it beside those who decode."""


@dataclass(frozen=True)
class ImageProcessor:
    """How an image becomes numbers: scaled and cut into tiles (`Vision`), then times `factor`, less the mean of each
    channel, over its deviation."""

    longest_edge: int  # pixels
    split: bool
    resample: int  # one of FILTERS
    factor: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def describe(self, vision: VisionConfig, token_work: int, max_batch_tokens: int) -> Vision:
        """For the control layer. `token_work`: multiplications for a token, of which a wave has `max_batch_tokens`."""
        return Vision(
            tile_size=vision.tile_size,
            tile_embeds=vision.tile_embeds,
            longest_edge=self.longest_edge,
            split=self.split,
            resample=self.resample,
            placeholder=vision.placeholder,
            layout=vision.layout,
            layers=vision.layers,
            layer_tokens=max(1, min(-(-vision.layer_work // token_work), max_batch_tokens // SHARE_OF_WAVE)),
            tile_slots=TILE_SLOTS,
        )


def read_image_processor(folder: Path, tile_size: int) -> ImageProcessor:
    """Reads the file of a folder. Raises CheckpointError if it is missing, or asks for what is not supported."""
    path = folder / FILE
    values = read_json(path) if path.exists() or not (folder / COMBINED_FILE).exists() else _combined(folder)
    try:
        return _read(ConfigJson(values), tile_size)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace("config.json", str(path), 1)) from None


def _combined(folder: Path) -> dict[str, object]:
    values = read_json(folder / COMBINED_FILE).get("image_processor")
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder / FILE}: there is no such file; it says how images are prepared")
    return values


def _read(config: ConfigJson, tile_size: int) -> ImageProcessor:
    for step in STEPS:
        if not config.flag(step, True):
            raise CheckpointError(f"config.json: {step} false is not supported")
    tile = ConfigJson(config.section("max_image_size")).whole("longest_edge", 364)
    if tile != tile_size:
        raise CheckpointError(
            f"config.json: max_image_size of {tile} is not supported, only image_size of the tower: {tile_size}"
        )
    resample = config.get("resample", LANCZOS)
    if resample not in FILTERS:
        raise CheckpointError(f"config.json: resample {resample!r} is not supported, only {FILTERS}")
    return ImageProcessor(
        longest_edge=ConfigJson(config.section("size")).whole("longest_edge", 4 * 364),
        split=config.flag("do_image_splitting", True),
        resample=int(resample),
        factor=config.number("rescale_factor", 1 / 255),
        mean=_channels(config, "image_mean"),
        deviation=_channels(config, "image_std"),
    )


def _channels(config: ConfigJson, key: str) -> tuple[float, ...]:
    values = config.items(key) or [0.5] * 3
    if len(values) != 3 or not all(is_number(value, above=0) for value in values):
        raise CheckpointError(f"config.json: {key} must be three numbers above 0, not {values!r}")
    return tuple(map(float, values))
