"""Models that see compute what transformers computes, from pixels to log-probabilities."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pie_control.images.prepare import prepare
from pie_inference.config import WorkerConfig
from pie_inference.protocol import EmbedImg, GetLogprobs, GetLogprobsResult, Vision
from pie_inference.serving.worker import Worker
from testing.vision_checkpoint import VOCAB, make_vision_checkpoint
from testing.worker_batches import Driver, Extend, Keys, image_batch, indptr, ints
from tests.helpers.oracle import assert_close
from tests.helpers.vision import expected_logprobs, load_model, load_processor, picture

PROMPTS: dict[str, tuple[str, list[tuple[int, int]]]] = {
    "no image": ("Nothing to see", []),
    "one": ("Look: <image> What is it?", [(100, 70)]),
    "first and last": ("<image><image>", [(64, 64), (9, 31)]),
    "several": ("A <image> and B <image>, also <image>.", [(64, 48), (33, 200), (500, 20)]),
}
SHAPES: dict[str, dict[str, Any]] = {
    "smolvlm": {},
    "idefics3": {"architecture": "Idefics3ForConditionalGeneration", "longest_edge": 90},
    "one tile": {"split": False},
    "small edge": {"longest_edge": 32},
    "uneven patches": {"image_size": 70, "patch_size": 14, "scale_factor": 5, "longest_edge": 210},
    "many patches": {"image_size": 364, "patch_size": 14, "longest_edge": 364},
}


class Seeing:
    """A checkpoint with the worker, the model and the processor that serve it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.worker = Worker(WorkerConfig(folder, "model", dtype="float32", pages=128, embeds=4096))
        vision = self.worker.describe()[0].vision
        assert vision is not None
        self.vision = vision
        self.model, self.processor = load_model(folder), load_processor(folder, vision.tile_embeds)
        self.driver = Driver(self.worker.run, "model")
        self.driver.outputs = 2048

    def logprobs(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> np.ndarray:
        """Log-probabilities behind each token, with the vectors of the images in place of their tokens."""
        embed, forward = self.driver.forward_batch([Extend(Keys(), tokens)])
        places = np.flatnonzero(np.array(tokens) == self.vision.placeholder)
        self.driver.run(embed)
        tiles = [tile for image in images for tile in prepare(as_png(image), self.vision).tiles]
        assert len(places) == len(tiles) * self.vision.tile_embeds
        for first in range(0, len(tiles), 3):
            some = tiles[first : first + 3]
            batch = whole_tiles(self.vision, some, places[first * self.vision.tile_embeds :])
            self.driver.run(batch)
        rows = ints(range(len(tokens))) + self.driver.outputs
        score = GetLogprobs(rows, indptr([VOCAB] * len(rows)), ints(list(range(VOCAB)) * len(rows)))
        return self.driver.ask(GetLogprobsResult, forward, score).logprobs.reshape(len(rows), VOCAB)


def as_png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def whole_tiles(vision: Vision, tiles: Sequence[bytes], embeds: np.ndarray) -> EmbedImg:
    """Whole tiles into the first of these embeds."""
    count, size = len(tiles), vision.tile_size
    pixels = np.frombuffer(b"".join(tiles), np.uint8).reshape(count, size, size, 3)
    return image_batch(vision, pixels, ints(embeds[: count * vision.tile_embeds]), range(count))


@pytest.fixture(scope="module", params=SHAPES)
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(make_vision_checkpoint(tmp_path_factory.mktemp("model"), **SHAPES[request.param]))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_log_probabilities_equal_those_of_transformers(seeing: Seeing, prompt: str) -> None:
    text, sizes = PROMPTS[prompt]
    images = [picture(width, height, seed) for seed, (width, height) in enumerate(sizes)]
    tokens, expected = expected_logprobs(seeing.model, seeing.processor, text, images)
    assert_close(seeing.logprobs(tokens, images), expected)


def test_each_image_matters(seeing: Seeing) -> None:
    text, images = "<image>?", [picture(90, 60, seed) for seed in range(2)]
    tokens, _ = expected_logprobs(seeing.model, seeing.processor, text, images[:1])
    one, other = (seeing.logprobs(tokens, [image]) for image in images)
    assert np.abs(one[-1] - other[-1]).max() > 0.01
