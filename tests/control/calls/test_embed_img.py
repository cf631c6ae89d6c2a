from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from pie_control.calls.input_image.image import Image
from pie_control.errors import InvalidArgument, InvalidState, NotFound, QuotaExceeded
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import EmbedImg, EmbedTxt, Forward, ModelDescription, Sample
from pie_inference.testing.small_vision import VISION
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import Inferlet, World, by_kind

VECTORS = VISION.tile_embeds


def image(tiles: int, seed: int = 0) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (tiles, VISION.tile_size**2 * 3), np.uint8)
    return Image(VISION, [tile.tobytes() for tile in pixels])


ONE = image(1)
REFUSED = [
    refusal(NotFound, NO_QUEUE, "embed_img", 9, ONE, 0, [4], [4, 1]),
    refusal(
        InvalidArgument,
        "embed-img got 1 positions and 2 embeds; give equally many",
        "embed_img",
        Q,
        ONE,
        0,
        [4],
        [4, 2],
    ),
    refusal(
        InvalidArgument, "the image has 3 vectors: 1 to 4 are not all there", "embed_img", Q, ONE, 1, [4, 5, 6], [4, 3]
    ),
    refusal(InvalidArgument, "the image has 3 vectors: 7 to 7 are not", "embed_img", Q, ONE, 7, [], []),
    refusal(InvalidArgument, "position 40 is outside of the model's", "embed_img", Q, ONE, 0, [40], [4, 1]),
    refusal(NotFound, "embed 8 is not allocated", "embed_img", Q, ONE, 0, [4, 5], [7, 2]),
    refusal(InvalidArgument, "embed 4 is named twice", "embed_img", Q, ONE, 0, [4, 5], [4, 1, 4, 1]),
    refusal(
        InvalidArgument,
        "the image was loaded for another model than",
        "embed_img",
        Q,
        dataclasses.replace(ONE, vision=msgspec.structs.replace(VISION, placeholder=1)),
        0,
        [4],
        [4, 1],
    ),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_an_image_becomes_a_command_for_each_tile() -> None:
    inferlet, handed_on = prepare()
    before, seen = len(handed_on), image(2)
    inferlet.call("embed_img", Q, seen, 2, [7, 8, 9], [4, 1, 6, 2])
    first, second = handed_on[before:]
    assert (first.tile, first.first, first.embeds) == (seen.tiles[0], 2, ((4, 5),))
    assert (second.tile, second.first, second.embeds) == (seen.tiles[1], 0, ((6, 8),))
    assert second.seq == first.seq + 1
    assert inferlet.space.embeds.positions[4:8] == [7, -1, 8, 9]


def test_an_embed_that_another_queue_uses_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("embed_img", Q, ONE, 0, [3], [4, 1])
    image = handed_on[-1].seq
    inferlet.call("embed_img", OTHER_QUEUE, ONE, 0, [3], [4, 1])
    assert handed_on[-1].after == image
    inferlet.call("embed_img", OTHER_QUEUE, ONE, 0, [3], [5, 1])
    assert handed_on[-1].after < image


def test_what_is_seen_says_nothing_of_the_next_token() -> None:
    inferlet, _ = prepare()
    inferlet.call("embed_img", Q, ONE, 0, [3], [4, 1])
    with pytest.raises(InvalidState, match="embed 4 holds an input"):
        inferlet.call("get_next_dist", Q, 4, 1, 1.0)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (2, 2), (3, 3), (1, 8), (0, 9), (5, 0)])
def test_the_parts_of_an_image_are_all_of_it_in_order(first: int, count: int) -> None:
    seen = image(3)
    vectors = [
        (seen.tiles.index(tile), begin + n) for tile, begin, size in seen.parts(first, count) for n in range(size)
    ]
    assert vectors == [divmod(vector, VECTORS) for vector in range(first, first + count)]
    assert seen.weight(first, count) == 48 * len({tile for tile, _ in vectors})


# ---- in waves ----


def start(**sizes: Any) -> tuple[World, Inferlet]:
    world = World(**sizes)
    return world, world.open(8, 128)


def look(inferlet: Inferlet, seen: Image, at: int = 0) -> None:
    """All of an image into embeds from `at` on."""
    inferlet.call("embed_img", inferlet.queue, seen, 0, range(seen.vectors), [inferlet.embeds + at, seen.vectors])


def kinds(world: World) -> list[list[type]]:
    return [list(by_kind(wave)) for wave in world.drain()]


def test_a_prompt_with_a_small_image_is_one_wave() -> None:
    world, one = start()
    look(one, image(2))
    one.embed(6, 2, at=6)
    one.forward(0, 8, 9)
    one.sample(9)
    assert kinds(world) == [[EmbedImg, EmbedTxt, Forward, Sample]]


def test_text_before_an_image_lets_it_pass() -> None:
    world, one = start()
    one.embed(0, 2, at=6)
    look(one, image(1))
    assert kinds(world) == [[EmbedImg, EmbedTxt]]


def test_what_is_filled_twice_holds_what_came_last() -> None:
    world, one = start()
    one.embed(0, 3)
    look(one, image(1))
    assert kinds(world) == [[EmbedTxt], [EmbedImg]]
    look(one, image(1))
    one.embed(0, 3)
    assert kinds(world) == [[EmbedImg, EmbedTxt]]
    look(one, image(1))
    look(one, image(1, 1))
    assert kinds(world) == [[EmbedImg], [EmbedImg]]


def test_a_large_image_takes_as_many_waves_as_its_tiles_ask() -> None:
    most = VISION.max_batch_tiles
    world, one = start()
    look(one, image(2 * most + 1))
    one.forward(0, 10, 120)
    batches = [by_kind(wave) for wave in world.drain()]
    assert [len(wave[EmbedImg].tiles) for wave in batches] == [most, most, 1]
    assert [Forward in wave for wave in batches] == [False, False, True]


def test_those_who_decode_have_a_step_in_each_wave_beside_images() -> None:
    world, one = start()
    others = [world.open(8, 64) for _ in range(5)]
    look(one, image(3 * VISION.max_batch_tiles))
    for position in range(3):
        for other in others:
            other.step(position)
    steps = [wave for wave in map(by_kind, world.drain()) if Sample in wave]
    assert [len(wave[Sample].embeds) for wave in steps[:3]] == [5, 5, 5]
    assert all(EmbedImg in wave for wave in steps[:3])


SLOW = msgspec.structs.replace(VISION, tile_tokens=40)


class SlowEyes(FakeModel):
    """A tile is worth forty tokens."""

    def describe(self) -> tuple[ModelDescription, ...]:
        return tuple(msgspec.structs.replace(one, vision=SLOW) for one in super().describe())


def seconds(batches: dict[type, Any]) -> float:
    """Of a wave: 5 ms, and 1 ms a token."""
    tiles = len(batches[EmbedImg].tiles) if EmbedImg in batches else 0
    tokens = len(batches[Forward].q_embeds) if Forward in batches else 0
    return 0.005 + 0.001 * (tokens + SLOW.tile_tokens * tiles)


def test_tiles_of_a_wave_do_not_hold_up_those_who_decode() -> None:
    """Alone, an image takes few waves; beside decodes, more of them, each of which takes 100 ms at most."""
    world = World(model=SlowEyes())
    one, others = world.open(8, 128), [world.open(8, 64) for _ in range(8)]
    seen = dataclasses.replace(image(8), vision=SLOW)

    def play() -> list[tuple[int, float]]:
        """Tiles and seconds of each wave, of those with tiles."""
        found, turn = list[tuple[int, float]](), world.turn()
        sent = list(turn.waves)
        while sent:
            batches = by_kind(sent.pop(0))
            if EmbedImg in batches:
                found.append((len(batches[EmbedImg].tiles), seconds(batches)))
            sent += world.turn(msgspec.structs.replace(world.run(), seconds=seconds(batches))).waves
        return found

    for position in range(12):
        for other in others[: 1 + position % len(others)]:
            other.step(position)
        play()
    look(one, seen)
    for other in others:
        other.step(12)
    beside = play()
    assert sum(tiles for tiles, _ in beside) == 8
    assert max(took for _, took in beside) <= 0.1
    look(one, dataclasses.replace(image(8, 1), vision=SLOW))
    play()
    look(one, dataclasses.replace(image(8, 2), vision=SLOW))
    assert [tiles for tiles, _ in play()] == [8], "nobody has decoded lately"


def test_several_images_share_a_wave_and_equal_tiles_travel_once() -> None:
    world, one = start()
    two = world.open(8, 64)
    look(one, image(2))
    look(two, image(2))
    look(two, image(1, 7), at=10)
    (wave,) = map(by_kind, world.drain())
    batch = wave[EmbedImg]
    assert batch.rows.tolist() == [0, 1, 0, 1, 2]
    assert batch.tiles.shape == (3, VISION.tile_size, VISION.tile_size, 3)
    assert batch.indptr.tolist() == [0, 3, 6, 9, 12, 15]


def test_more_tiles_than_may_wait_are_refused_at_once() -> None:
    inferlet, handed_on = prepare()
    inferlet.space.ledger.quota = dataclasses.replace(inferlet.space.ledger.quota, commands=2)
    before = len(handed_on)
    with pytest.raises(QuotaExceeded, match="waiting commands"):
        inferlet.call("embed_img", Q, image(3), 0, range(3), _ranges(4, 3))
    assert len(handed_on) == before


def _ranges(first: int, count: int) -> Sequence[int]:
    return [first, count]


# ---- what a host hands on ----


@pytest.mark.parametrize(
    ("tile", "first", "embeds", "message"),
    [
        (b"", 0, ((0, 1),), "a tile has 0 bytes, not 3 for each of 4^2 pixels"),
        (bytes(49), 0, ((0, 1),), "a tile has 49 bytes"),
        (bytes(48), -1, ((0, 1),), f"a tile has {VECTORS} vectors: -1 to 0 are not"),
        (bytes(48), 2, ((0, 1), (5, 6)), f"a tile has {VECTORS} vectors: 2 to 4 are not"),
    ],
)
def test_what_cannot_be_is_not_believed(tile: bytes, first: int, embeds: Any, message: str) -> None:
    inferlet, handed_on = prepare()
    inferlet.call("embed_img", Q, ONE, 0, [3], [4, 1])
    command = handed_on[-1]
    command.check(inferlet.space.model)
    with pytest.raises(ValueError, match=re.escape(message)):
        msgspec.structs.replace(command, tile=tile, first=first, embeds=embeds).check(inferlet.space.model)
    blind = msgspec.structs.replace(inferlet.space.model, vision=None)
    with pytest.raises(ValueError, match="takes no images"):
        command.check(blind)
