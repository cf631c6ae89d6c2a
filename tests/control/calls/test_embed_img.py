from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from pie_control.calls.input_image.image import Image
from pie_control.errors import InvalidArgument, InvalidState, NotFound, QuotaExceeded
from pie_control.scheduling.forming.waves import MISFITS
from pie_control.tenants.budgets import Budget
from pie_control.tenants.tenant import ServiceClass, Standing, Tenant
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import EmbedImg, EmbedTxt, Forward, Sample
from pie_inference.testing.small_vision import VISION
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import SIZES, Inferlet, World, by_kind

VECTORS = VISION.tile_embeds
WAVE = SIZES["max_batch_tokens"]


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


def layers_of(batches: dict[type, Any]) -> int:
    """That the tiles of a wave go through."""
    return int((batches[EmbedImg].ends - batches[EmbedImg].begins).sum()) if EmbedImg in batches else 0


def tiles_under_way(world: World) -> int:
    return len(vars(world.scheduler)["_memory"].tiles)


def test_a_large_image_takes_as_many_waves_as_its_layers_ask() -> None:
    most = WAVE // VISION.layer_tokens
    world, one = start()
    look(one, image(7))
    one.forward(0, 10, 120)
    batches = [by_kind(wave) for wave in world.drain()]
    assert [layers_of(wave) for wave in batches] == [most, most, 7 * VISION.layers - 2 * most]
    assert [Forward in wave for wave in batches] == [False, False, True]
    assert tiles_under_way(world) == 0


def test_a_tile_goes_on_where_it_was_without_its_pixels() -> None:
    world, one = start(max_batch_tokens=8)
    look(one, image(1))
    waves = [by_kind(wave)[EmbedImg] for wave in world.drain()]
    assert [(wave.begins.tolist(), wave.ends.tolist()) for wave in waves] == [([0], [2]), ([2], [4]), ([4], [5])]
    assert [(wave.rows.tolist(), len(wave.tiles)) for wave in waves] == [([0], 1), ([-1], 0), ([-1], 0)]
    assert [len(wave.embeds) for wave in waves] == [0, 0, VECTORS]
    assert len({wave.slots[0] for wave in waves}) == 1


def test_those_who_decode_have_a_step_in_each_wave_beside_images() -> None:
    world, one = start()
    others = [world.open(8, 64) for _ in range(5)]
    look(one, image(12))
    for position in range(3):
        for other in others:
            other.step(position)
    steps = [wave for wave in map(by_kind, world.drain()) if Sample in wave]
    assert [len(wave[Sample].embeds) for wave in steps[:3]] == [5, 5, 5]
    assert all(EmbedImg in wave for wave in steps[:3])


SLOW = msgspec.structs.replace(VISION, layers=8, layer_tokens=WAVE // 4)


def seconds(batches: dict[type, Any]) -> float:
    """Of a wave: 5 ms, and 10 ms a token."""
    tokens = len(batches[Forward].q_embeds) if Forward in batches else 0
    return 0.005 + 0.01 * (tokens + SLOW.layer_tokens * layers_of(batches))


class SlowWorld:
    """One inferlet has an image, whose layers are slow, and one decodes."""

    def __init__(self) -> None:
        self.world = World(model=FakeModel("fake", **SIZES, vision=SLOW))
        self.one, self.other = self.world.open(8, 128), self.world.open(30, 128)
        self.position = 0

    def look(self, seed: int) -> None:
        look(self.one, dataclasses.replace(image(1, seed), vision=SLOW))

    def decode(self, steps: int) -> list[dict[type, Any]]:
        """One inferlet asks for the next token whenever it has one, so often. Gives the waves until nobody waits."""
        found, asked = list[dict[type, Any]](), 0
        while True:
            if asked < steps and asked == len(self.other.answers):
                self.other.step(self.position)
                self.position, asked = self.position + 1, asked + 1
            turn = self.world.turn()
            if not turn.waves and not self.world.sent:
                return found
            batches = by_kind(self.world.sent[0])
            found.append(batches)
            done = self.world.model.run(self.world.sent.popleft())
            self.world.turn(msgspec.structs.replace(done, seconds=seconds(batches)), quiet=False)


def test_a_decode_beside_a_slow_tile_gets_a_token_between_two_layers() -> None:
    slow = SlowWorld()
    slow.decode(20)  # so it is known how long waves take
    slow.other.answers.clear()
    slow.look(0)
    beside = slow.decode(30)
    seen = [layers_of(batches) for batches in beside]
    assert seen[: SLOW.layers] == [1] * SLOW.layers
    assert all(Sample in batches for batches in beside)
    assert len(beside) == 30
    slow.look(1)
    slow.decode(0)
    slow.look(2)
    assert [layers_of(batches) for batches in slow.decode(0)] == [4, 4], "nobody has decoded lately"


def test_a_tile_whose_inferlet_ends_leaves_nothing_behind() -> None:
    world, one = start(max_batch_tokens=8)
    look(one, image(1))
    world.turn()
    assert tiles_under_way(world) == 1
    world.close(one)
    world.drain()
    assert tiles_under_way(world) == 0


def test_who_waits_for_a_slot_and_ends_leaves_the_line() -> None:
    world, one = start(max_batch_tokens=24)
    others = [world.open(8, 64) for _ in range(VISION.tile_slots + 1)]
    for seed, inferlet in enumerate((one, *others)):
        look(inferlet, image(2, seed))
    world.turn()
    for inferlet in (others[-1], others[0]):
        world.close(inferlet)
    world.drain()
    assert tiles_under_way(world) == 0
    assert one.space.waiting == 0


def test_a_tile_that_fails_on_its_way_ends_its_inferlet_and_leaves_nothing_behind() -> None:
    world, one = start(max_batch_tokens=8)
    other = world.open(8, 64)
    world.may_fail = True
    look(one, image(1))
    look(other, image(1, 1))
    world.turn()
    slots = vars(vars(world.model)["_tiles"])["_slots"]
    world.answer()
    lost = vars(world.scheduler)["_memory"].tiles.take(one.owner, first_tile(world, one))
    del slots[lost]
    world.drain()
    assert one.ending is not None
    assert other.ending is None
    assert tiles_under_way(world) == 0


def first_tile(world: World, inferlet: Inferlet) -> int:
    """The number of the command of an inferlet that is under way."""
    (found,) = [seq for owner, seq in vars(vars(world.scheduler)["_memory"].tiles)["_slots"] if owner == inferlet.owner]
    return int(found)


def test_no_more_tiles_are_under_way_than_there_are_slots() -> None:
    world = World(max_batch_tokens=24, num_pages=400, num_embeds=4096)
    inferlets = [world.open(8, 64) for _ in range(MISFITS + 2 * VISION.tile_slots)]
    for seed, inferlet in enumerate(inferlets):
        look(inferlet, image(2, seed))
    most, layers = 0, 0
    while waves := world.turn().waves:
        layers += sum(layers_of(by_kind(wave)) for wave in waves)
        most = max(most, tiles_under_way(world))
        while world.sent:
            world.answer()
    assert most == VISION.tile_slots
    assert layers == 2 * len(inferlets) * VISION.layers
    assert tiles_under_way(world) == 0
    assert all(inferlet.space.waiting == 0 for inferlet in inferlets)


def test_batch_jobs_leave_slots_for_interactive_inferlets() -> None:
    world, one = start(max_batch_tokens=8)
    batch = Standing(Tenant("t"), ServiceClass.BATCH)
    for seed in range(VISION.tile_slots):
        look(world.open(8, 64, batch), image(1, seed))
    for _ in range(VISION.tile_slots):
        world.turn()
        world.answer()
    look(one, image(1, 9))
    world.turn()
    assert first_tile(world, one)
    world.drain()
    assert tiles_under_way(world) == 0


def test_tiles_of_a_spent_budget_that_have_begun_go_on_and_others_leave_the_slots() -> None:
    world = World(max_batch_tokens=8)
    world.meters.use({"flood": Budget(tokens_per_minute=150)})
    for seed in range(2 * VISION.tile_slots):
        look(world.open(8, 64, Standing(Tenant("flood"))), image(2, seed))
    for _ in range(2 * VISION.tile_slots):
        world.turn()
        world.answer()
    flood = world.meters.of(Standing(Tenant("flood")))
    assert flood.is_spent(world.now)
    calm = world.open(8, 64, Standing(Tenant("calm")))
    look(calm, image(1, 9))
    world.drain()
    assert calm.space.waiting == 0
    assert tiles_under_way(world) == 0
    assert flood.usage.tokens < 150 / 6 + 8 + VISION.tile_slots * VISION.tile_tokens


def test_several_images_share_a_wave_and_equal_tiles_travel_once() -> None:
    world, one = start()
    two = world.open(8, 64)
    look(one, image(1))
    look(two, image(1))
    look(two, image(1, 7), at=10)
    (wave,) = map(by_kind, world.drain())
    batch = wave[EmbedImg]
    assert sorted(batch.rows.tolist()) == [0, 0, 1]
    assert batch.tiles.shape == (2, VISION.tile_size, VISION.tile_size, 3)
    assert batch.indptr.tolist() == [0, 3, 6, 9]


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
    "lie",
    [
        {"tile": b""},
        {"tile": bytes(49)},
        {"first": -1},
        {"first": 2, "embeds": ((0, 1), (5, 6))},
        {"embeds": ((1, 0),)},
        {"size": 1},
        {"whole": True},
        {"unit": 1},
    ],
)
def test_what_cannot_be_is_not_believed(lie: dict[str, Any]) -> None:
    inferlet, handed_on = prepare()
    inferlet.call("embed_img", Q, ONE, 0, [3], [4, 1])
    command = handed_on[-1]
    assert command.fits(inferlet.space.model)
    assert not msgspec.structs.replace(command, **lie).fits(inferlet.space.model)
    assert not command.fits(msgspec.structs.replace(inferlet.space.model, vision=None))
