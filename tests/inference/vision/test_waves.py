"""Commands with images in waves: on a worker, on a group of ranks, and in the models without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pie_control.testing.fake_model import FakeModel
from pie_inference.config import WorkerConfig
from pie_inference.options import WorkerOptions
from pie_inference.options.pace import Pace
from pie_inference.protocol import (
    EmbedImg,
    Forward,
    GetLogprobs,
    GetLogprobsResult,
    RunWave,
    Vision,
    WaveDone,
)
from pie_inference.serving.worker import Worker
from pie_inference.tensor_parallel.group import WorkerGroup
from pie_inference.testing.paced_model import PacedModel
from testing.checkpoints import make_checkpoint
from testing.vision_checkpoint import make_vision_checkpoint
from testing.worker_batches import Driver, Extend, Keys, image_batch, in_two, indptr, ints
from tests.helpers.oracle import assert_close

TILES = 3
OPTIONS: dict[str, Any] = {"dtype": "float32", "pages": 64, "embeds": 2048, "threads": 2}


@dataclass(frozen=True)
class Served:
    """What runs waves, and how it takes images."""

    run: Callable[[RunWave], WaveDone]
    vision: Vision

    def batch(self, *commands: tuple[int, int, int], seed: int = 0) -> EmbedImg:
        """Commands (tile, first vector, number of vectors), one behind the other in the embeds."""
        size, lengths = self.vision.tile_size, [count for *_, count in commands]
        tiles = np.random.default_rng(seed).integers(0, 256, (TILES, size, size, 3), np.uint8)
        rows, firsts = [row for row, *_ in commands], [first for _, first, _ in commands]
        return image_batch(self.vision, tiles, ints(range(sum(lengths))), rows, firsts, lengths)

    def seen(self, *batches: EmbedImg, count: int) -> np.ndarray:
        """Log-probabilities behind each of the first embeds, as the inputs of one forward; the batches fill them."""
        driver = Driver(self.run, "model")
        keys, text = Keys(), [65] * count
        embed, forward = driver.forward_batch([Extend(keys, text)])
        driver.run(*batches[:1] or [embed], *batches[1:])
        return self.scored(driver, forward, count)

    def scored(self, driver: Driver, forward: Forward, count: int) -> np.ndarray:
        """As `seen`, of embeds as they are."""
        score = GetLogprobs(ints(range(count)) + driver.outputs, indptr([9] * count), ints(list(range(9)) * count))
        return driver.ask(GetLogprobsResult, forward, score).logprobs.reshape(count, 9)


def served_by(runner: Any) -> Served:
    vision = runner.describe()[0].vision
    assert vision is not None
    return Served(runner.run, vision)


@pytest.fixture(scope="module", params=["worker", "ranks", "fake"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if request.param == "fake":
        yield served_by(FakeModel("model"))
        return
    folder = make_vision_checkpoint(tmp_path_factory.mktemp("model"))
    config = WorkerConfig(folder, "model", **OPTIONS)
    if request.param == "worker":
        yield served_by(Worker(config))
        return
    with WorkerGroup(WorkerConfig(folder, "model", tensor_parallel=2, **OPTIONS), Worker) as group:
        yield served_by(group)


def test_commands_of_several_images_share_a_batch(served: Served) -> None:
    whole = served.vision.tile_embeds
    together = served.seen(served.batch((2, 0, whole), (0, 0, whole), (0, 0, whole)), count=3 * whole)
    one, two, three = (served.batch((row, 0, whole)) for row in (2, 0, 0))
    apart = [one, *(replace(each, embeds=each.embeds + n * whole) for n, each in enumerate((two, three), 1))]
    assert_close(together, served.seen(*apart, count=3 * whole))


def test_a_part_of_a_tile_is_that_part(served: Served) -> None:
    whole = served.vision.tile_embeds
    parts = served.seen(served.batch((1, 0, 1), (1, 1, whole - 1)), count=whole)
    assert_close(parts, served.seen(served.batch((1, 0, whole)), count=whole))
    assert np.abs(parts - served.seen(served.batch((1, 0, whole), seed=1), count=whole)).max() > 1e-3


@pytest.mark.parametrize("rows", [(0,), (0, 2, 1)])
def test_a_tile_that_goes_through_its_layers_in_two_waves_is_the_same(served: Served, rows: Sequence[int]) -> None:
    """To the last bit: its state waits in the number format in which it is computed."""
    whole = served.vision.tile_embeds
    batch = served.batch(*((row, 0, whole) for row in rows))
    count = len(batch.embeds)
    expected = served.seen(batch, count=count)
    for layer in range(1, served.vision.layers):
        before, after = in_two(batch, layer)
        run(served, before)
        run(served, served.batch(*((row, 0, whole) for row in rows), seed=9))  # nothing of what is expected is left
        assert (served.seen(after, count=count) == expected).all()


def test_a_tile_that_ends_may_hand_its_slot_on_within_a_batch(served: Served) -> None:
    """The earlier command reads it before the later one writes."""
    whole = served.vision.tile_embeds
    first, second = (served.batch((row, 0, whole)) for row in (0, 1))
    expected = [served.seen(each, count=whole) for each in (first, second)]
    (begun, ending), (begins, rest) = in_two(first, 1), in_two(second, 1)
    run(served, begun)
    names = ("rows", "begins", "ends", "slots", "firsts", "tiles")
    joined = {name: np.concatenate([getattr(ending, name), getattr(begins, name)]) for name in names}
    both = replace(ending, **joined, indptr=indptr([whole, 0]))
    assert (served.seen(both, count=whole) == expected[0]).all()
    assert (served.seen(rest, count=whole) == expected[1]).all()


def test_a_wrong_command_leaves_the_states_of_others_as_they_were(served: Served) -> None:
    """A batch that fails runs again, command by command."""
    whole, layers = served.vision.tile_embeds, served.vision.layers
    batch = served.batch((0, 0, whole), (2, 0, whole))
    expected = served.seen(batch, count=2 * whole)
    before, after = in_two(batch, 1)
    run(served, before)
    done = served.run(RunWave(79, "model", (replace(after, ends=ints([layers, layers + 1])),)))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, 1)]
    run(served, after.only(1))
    driver = Driver(served.run, "model")
    _, forward = driver.forward_batch([Extend(Keys(), [65] * 2 * whole)])
    assert_close(served.scored(driver, forward, 2 * whole), expected)


def run(served: Served, batch: EmbedImg) -> None:
    done = served.run(RunWave(5, "model", (batch,)))
    assert not done.failures, done.failures


WRONG: dict[str, Callable[[EmbedImg], EmbedImg]] = {
    "vector": lambda batch: replace(batch, firsts=batch.firsts + ints([0, 1000, 0])),
    "negative vector": lambda batch: replace(batch, firsts=batch.firsts - ints([0, 1, 0])),
    "layer": lambda batch: replace(batch, begins=batch.begins + ints([0, 99, 0])),
    "no layers": lambda batch: replace(batch, ends=batch.ends * ints([1, 0, 1])),
    "embeds of a tile on its way": lambda batch: replace(batch, ends=batch.ends - ints([0, 1, 0])),
    "slot": lambda batch: replace(batch, slots=batch.slots + ints([0, 99, 0])),
    "tile": lambda batch: replace(batch, rows=batch.rows + ints([0, TILES, 0])),
    "embed": lambda batch: replace(batch, embeds=np.where(batch.embeds == 1, 10**6, batch.embeds).astype(np.int32)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_command_fails_alone(served: Served, fault: str) -> None:
    good = served.batch((0, 0, 1), (1, 0, 1), (2, 0, 1))
    expected = served.seen(good, count=3)
    done = served.run(RunWave(77, "model", (WRONG[fault](good),)))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, 1)]
    assert done.failures[0].message.startswith("embed_img: ")
    driver = Driver(served.run, "model")
    _, forward = driver.forward_batch([Extend(Keys(), [65] * 3)])
    assert_close(served.scored(driver, forward, 3), expected)  # the wrong command has left what was there before


def test_tiles_of_another_size_fail(served: Served) -> None:
    batch = served.batch((0, 0, 1))
    done = served.run(RunWave(78, "model", (replace(batch, tiles=batch.tiles[:, 1:]),)))
    assert "tiles" in done.failures[0].message


def test_a_model_without_eyes_does_not_offer_the_call(tmp_path: Any) -> None:
    worker = Worker(WorkerConfig(make_checkpoint(tmp_path), "model", **OPTIONS))
    description = worker.describe()[0]
    assert "embed_img" not in description.calls
    assert description.vision is None
    batch = served_by(FakeModel()).batch((0, 0, 1))
    done = worker.run(RunWave(1, "model", (batch,)))
    assert done.failures[0].message == "embed_img: model model takes no images"


def test_a_paced_model_answers_with_what_depends_on_the_image() -> None:
    model = PacedModel("model", Pace(0.001), WorkerOptions())
    paced = served_by(model)
    outputs = [paced.seen(paced.batch((0, 0, 3), seed=seed), count=3) for seed in (0, 0, 1)]
    assert (outputs[0] == outputs[1]).all()
    assert (outputs[0] != outputs[2]).any()
