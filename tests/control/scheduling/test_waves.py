"""What goes into a wave, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from pie_control.calls.forward import batch as forward_batch
from pie_control.scheduling import Adaptive
from pie_control.scheduling.forming import taking
from pie_control.scheduling.turn import HostQuiet
from pie_inference.protocol import CopyKvpage, EmbedTxt, Forward, GetLogprobs, GetNextDist, RunWave, Sample
from tests.helpers.integrity import check_scheduler
from tests.helpers.scheduling import Inferlet, World, by_kind, greedy, name_token
from tests.helpers.work import lines_of

SIZE = 4


def start(**sizes: Any) -> tuple[World, Inferlet]:
    """A world with one inferlet."""
    world = World(**sizes)
    return world, world.open(8, 64)


def waves(world: World) -> list[dict[type, Any]]:
    """Runs all there is to run; the batches of each wave."""
    return [by_kind(wave) for wave in world.drain()]


def test_a_step_is_one_wave_in_stage_order() -> None:
    world, one = start()
    one.step(0, 5)
    assert [list(wave) for wave in waves(world)] == [[EmbedTxt, Forward, Sample]]


def test_the_next_step_waits_for_the_next_wave() -> None:
    world, one = start()
    one.step(0)
    one.step(1)
    assert [list(wave) for wave in waves(world)] == [[EmbedTxt, Forward, Sample]] * 2


def test_all_kinds_of_output_share_a_wave() -> None:
    world, one = start()
    one.step(0)
    one.call("get_next_dist", one.queue, one.embeds + 63, 2, 1.0)
    one.call("get_logprobs", one.queue, one.embeds + 63, [1])
    one.sample(63)
    (wave,) = waves(world)
    assert list(wave)[:2] == [EmbedTxt, Forward]
    assert set(wave) == {EmbedTxt, Forward, Sample, GetNextDist, GetLogprobs}
    assert len(wave[Sample].embeds) == 2


def test_inferlets_share_batches() -> None:
    world = World()
    for _ in range(5):
        world.open(8, 64).step(0)
    (wave,) = waves(world)
    assert [len(wave[EmbedTxt].embeds), len(wave[Forward].q_embeds), len(wave[Sample].embeds)] == [5, 5, 5]


def test_a_prefill_in_two_forwards_shares_a_batch() -> None:
    world, one = start()
    one.embed(0, 6)
    one.forward(0, 4)
    one.forward(4, 2, output=63)
    one.sample(63)
    (wave,) = waves(world)
    assert wave[Forward].q_indptr.tolist() == [0, 4, 6]


def test_a_forward_that_reads_an_output_of_the_batch_waits() -> None:
    world, one = start()
    one.embed(0)
    one.forward(0, output=5)
    one.forward(5, output=6)
    assert [list(wave) for wave in waves(world)] == [[EmbedTxt, Forward], [Forward]]


def test_an_embed_is_written_once_in_a_batch() -> None:
    world, one = start()
    one.embed(0)
    one.embed(1, at=1)
    one.embed(2, at=0)
    assert [wave[EmbedTxt].embeds.tolist() for wave in waves(world)] == [[0, 1], [0]]


def test_two_copies_of_a_queue_are_two_waves() -> None:
    world, one = start()
    one.embed(0, SIZE)
    one.forward(0, SIZE)
    waves(world)
    slot = one.pages * SIZE
    one.call("copy_kvpage", one.queue, [slot, 2], [slot + SIZE, 2])
    one.call("copy_kvpage", one.queue, [slot + SIZE, 2], [slot + 2 * SIZE, 2])
    assert [wave[CopyKvpage].source.tolist() for wave in waves(world)] == [[0, 1], [4, 5]]


def test_a_slot_that_trim_freed_is_not_filled_twice_in_a_wave() -> None:
    world, one = start()
    one.embed(0, 2)
    one.forward(0)
    one.call("trim_kvpage", one.queue, [one.pages, 1], 0)
    one.forward(1)
    assert [wave[Forward].q_slots.tolist() for wave in waves(world)] == [[0], [0]]


def test_a_slot_that_a_trim_emptied_after_memory_was_given_back_is_filled_at_once() -> None:
    world, one = start()
    one.embed(0, 2)
    one.forward(0, 2)
    world.drain()
    one.call("dealloc", one.queue, "kvpage", [one.pages + 7, 1])
    one.call("trim_kvpage", one.queue, [one.pages, 1], 1)
    one.call("forward", one.queue, [one.pages, 1], [one.embeds + 1, 1], [one.pages, 1], [])
    assert len(world.turn().waves) == 1, "nothing would ask for a wave again"


def test_a_context_of_one_range_is_dense() -> None:
    world, one = start()
    one.step(0, 6)
    one.step(6)
    first, second = (wave[Forward] for wave in waves(world))
    assert (first.kv_pages.tolist(), first.kv_ends.tolist(), first.dense.tolist()) == ([0, 1], [4, 2], [True])
    assert (second.kv_pages.tolist(), second.kv_ends.tolist(), second.dense.tolist()) == ([0, 1], [4, 3], [True])


def test_a_context_with_a_partial_page_inside_is_not_dense() -> None:
    world, one = start()
    one.step(0, 2)
    one.embed(2)
    pages = one.pages
    one.call("forward", one.queue, [pages, 1], [one.embeds, 1], [pages + 3, 1], [])
    forward = waves(world)[-1][Forward]
    assert (forward.kv_pages.tolist(), forward.kv_ends.tolist(), forward.dense.tolist()) == ([0, 3], [2, 1], [False])


def test_tokens_at_later_positions_are_left_out() -> None:
    world, one = start()
    one.embed(0, 6)
    one.forward(0, 6)
    one.embed(3)
    one.forward(0)
    forward = waves(world)[-1][Forward]
    assert (forward.kv_pages.tolist(), forward.kv_ends.tolist()) == ([0, 1], [3, 3])
    assert forward.kv_begins.tolist() == [0, 2]
    assert forward.position_keys is None


def test_queries_that_see_different_tokens_see_them_by_position() -> None:
    world, one = start()
    one.embed(0, 3)
    one.forward(0, 3)
    one.embed(1, 2)
    one.forward(0, 2)
    forward = waves(world)[-1][Forward]
    assert forward.position_keys.tolist() == [2]  # at 0 and 1, of which the query at 1 sees one
    assert forward.kv_ends.tolist() == [2, 4, 1]
    assert (forward.mask_indptr, forward.mask_bits) == (None, None)


@pytest.mark.parametrize("pairs", [1000, 50, 33, 8, 1])
def test_masks_by_position_bound_a_wave(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    """Two forwards of 4 tokens over 4 keys that they do not all see: 8 pairs of query and key for each token."""
    monkeypatch.setattr(forward_batch, "MOST_PAIRS", pairs)
    world = World()
    both = [world.open(8, 64), world.open(8, 64)]
    for one in both:
        one.embed(0, 4)
        one.forward(0, 4)
    waves(world)
    for one in both:
        one.embed(1, 4)
        one.forward(0, 4)
    sent = [wave[Forward] for wave in waves(world) if Forward in wave]
    assert sum(len(forward.q_embeds) for forward in sent) == 8
    for forward in sent:
        parts = len(forward.q_embeds)
        assert parts * 8 <= pairs or parts == 1, "the first one may always have some"
    check_scheduler(world.scheduler)


def test_a_forward_without_output_pages_uses_scratch_slots() -> None:
    world, one = start()
    one.step(0, 3)
    one.embed(3, 2)
    pages = one.pages
    one.call("forward", one.queue, [pages, 1], [one.embeds, 2], [], [one.embeds + 63, 1])
    one.sample(63)
    one.call("trim_kvpage", one.queue, [pages, 1], 3)  # it took no slot: nothing is lost
    one.step(3)
    _, second, third = waves(world)
    scratch = (200 - 16) * SIZE
    assert second[Forward].q_slots.tolist() == [scratch, scratch + 1]
    assert third[Forward].q_slots.tolist() == [3]


def test_a_long_prefill_takes_what_decodes_leave() -> None:
    world = World(max_batch_tokens=20)
    long, *short = (world.open(16, 64) for _ in range(4))
    long.step(0, 50)
    for one in short:
        one.step(0)
    sent = waves(world)
    assert [len(wave[Forward].q_embeds) for wave in sent] == [20, 20, 13]
    assert [len(wave[Sample].embeds) if Sample in wave else 0 for wave in sent] == [3, 0, 1]
    assert sent[0][Forward].q_indptr.tolist() == [0, 1, 2, 3, 20]
    assert sent[1][Forward].kv_ends.tolist() == [SIZE] * 9 + [1]
    assert [len(wave[Forward].out_rows) for wave in sent] == [3, 0, 1]


def test_outputs_of_a_split_forward_fall_where_their_tokens_are() -> None:
    world = World(max_batch_tokens=20)
    one = world.open(16, 64)
    one.embed(0, 30)
    pages = [one.pages, 16]
    one.call("forward", one.queue, pages, [one.embeds, 30], pages, [one.embeds + 40, 15])
    first, second = waves(world)
    assert first[Forward].out_rows.tolist() == [15, 16, 17, 18, 19]
    assert second[Forward].out_rows.tolist() == list(range(10))
    assert first[Forward].out_embeds.tolist() + second[Forward].out_embeds.tolist() == list(range(40, 55))


@pytest.mark.parametrize("neighbours", [0, 3])
def test_outputs_over_inputs_of_later_tokens_do_not_depend_on_batching(neighbours: int) -> None:
    """All inputs are read before an output is written."""
    tokens = set()
    for max_batch_tokens in (64, 20):
        world = World(max_batch_tokens=max_batch_tokens)
        one, *others = (world.open(16, 64) for _ in range(neighbours + 1))
        one.embed(0, 18, tokens=range(18))
        one.call("forward", 1, [], [one.embeds, 18], [one.pages, 8], [one.embeds + 8, 10, one.embeds, 6])
        future = one.sample(5)
        for other in others:
            other.step(0)
        world.drain()
        tokens.add(one.token(future))
    assert len(tokens) == 1


def test_a_forward_over_its_own_inputs_is_split_where_that_changes_nothing() -> None:
    world = World(max_batch_tokens=20)
    one = world.open(16, 64)
    one.embed(0, 30)
    one.call("forward", 1, [], [one.embeds, 30], [one.pages, 8], [one.embeds, 30])
    assert [len(wave[Forward].q_embeds) for wave in waves(world)] == [20, 10]


def test_rows_beyond_the_maximum_wait() -> None:
    world = World(max_batch_rows=2)
    for _ in range(5):
        world.open(8, 64).step(0)
    assert [len(wave[Sample].embeds) for wave in waves(world)] == [2, 2, 1]


def test_a_sample_waits_for_a_token_slot() -> None:
    world = World(num_token_slots=1)
    for _ in range(2):
        world.open(8, 64).step(0)
    assert [len(wave[Sample].embeds) for wave in waves(world)] == [1, 1]


def test_branches_that_read_a_common_prefix_share_a_batch() -> None:
    world, one = start()
    one.embed(0, SIZE)
    one.forward(0, SIZE, output=63)
    waves(world)
    prefix = [one.pages, 1]
    for branch in range(4):
        queue = one.create_queue()
        one.embed(SIZE, at=branch, queue=queue)
        own = [one.pages + 1 + branch, 1]
        one.call("forward", queue, prefix + own, [one.embeds + branch, 1], own, [])
        one.sample(63, queue=queue)
    (wave,) = waves(world)
    assert [len(wave[Forward].q_embeds), len(wave[Sample].embeds)] == [4, 4]


def test_a_branch_waits_until_the_prefix_was_dispatched() -> None:
    world, one = start()
    waves(world)
    other = one.create_queue()
    one.embed(0, SIZE, queue=other)
    one.embed(SIZE, at=SIZE)
    waves(world)
    one.forward(0, SIZE, queue=other)
    one.forward(SIZE)
    assert [wave[Forward].q_positions.tolist() for wave in waves(world)] == [[0, 1, 2, 3], [4]]


def test_queues_that_write_and_read_one_embed_keep_the_order_of_issue() -> None:
    world, one = start()
    other = one.create_queue()
    waves(world)
    one.embed(0)
    one.forward(0, output=63)
    one.sample(63)
    one.embed(7, at=63, queue=other)  # must not overwrite what the sample reads
    assert [list(wave) for wave in waves(world)] == [[EmbedTxt, Forward, Sample], [EmbedTxt]]


def test_what_a_destroyed_queue_holds_still_comes_first() -> None:
    world = World(num_pages=16 + 8)
    holder = world.open(8, 1)
    one = world.open(0, 64)
    world.drain()
    other = one.create_queue()
    one.call("alloc", other, "kvpage", 1)  # waits for pages, and what is behind it does, too
    one.embed(0, queue=other)
    one.destroy_queue(other)
    one.sample(0)
    world.close(holder)
    assert [list(wave) for wave in waves(world)] == [[EmbedTxt], [Sample]]


def test_many_readers_of_an_embed_all_come_before_its_next_writer() -> None:
    world, one = start(max_batch_rows=1)
    others = [one.create_queue() for _ in range(2)]
    one.embed(0, at=63)
    waves(world)
    for queue in (one.queue, *others):
        one.sample(63, queue=queue)
    one.embed(7, at=63, queue=others[0])
    assert [list(wave) for wave in waves(world)] == [[Sample], [Sample], [Sample], [EmbedTxt]]


def test_run_ahead_reads_the_token_slot_until_the_value_is_known() -> None:
    world = World(Adaptive(surplus=0))
    one = world.open(8, 64)
    future = one.step(0)
    one.call("embed_txt", one.queue, [name_token(future)], [1], [one.embeds, 1])
    first, second = (by_kind(wave) for wave in world.turn().waves)
    assert second[EmbedTxt].tokens.tolist() == [-1 - first[Sample].token_slots[0]]
    world.answer()
    world.answer()
    one.call("embed_txt", one.queue, [name_token(future)], [2], [one.embeds, 1])
    (third,) = waves(world)
    assert third[EmbedTxt].tokens.tolist() == [one.token(future)]


def test_a_penalty_that_names_a_token_of_the_same_wave_waits() -> None:
    world, one = start()
    one.embed(0)
    one.forward(0, output=63)
    future = one.sample(63)
    one.call("sample", one.queue, one.embeds + 63, greedy(), [name_token(future), 3], "")
    first, second = (by_kind(wave) for wave in world.turn().waves)
    assert (len(first[Sample].embeds), len(second[Sample].embeds)) == (1, 1)
    assert second[Sample].recent.tolist() == [-1 - first[Sample].token_slots[0], 3]
    world.drain()
    one.call("sample", one.queue, one.embeds + 63, greedy(), [name_token(future), 3], "")
    (third,) = waves(world)
    assert third[Sample].recent.tolist() == [one.token(future), 3]


# ---- embeds before forwards ----


def prompt_in_chunks(world: World, chunks: int, size: int, embeds: int) -> Inferlet:
    """An inferlet that runs a prompt in pieces, each embedded just before its forward, to the embeds that come next
    (there are `embeds`, used again and again), and samples."""
    one = world.open(-(-chunks * size // 4), embeds + 1)
    for number in range(chunks):
        at = number * size % embeds
        one.embed(number * size, size, at)
        one.forward(at, size, embeds if number == chunks - 1 else None)
    one.sample(embeds)
    return one


def test_a_prompt_in_chunks_takes_one_wave_if_the_worker_can_run_it_at_once() -> None:
    world = World(num_pages=2000, num_embeds=4096, max_batch_tokens=2048)
    one = prompt_in_chunks(world, 8, 256, 2048)
    (wave,) = world.drain()
    batches = by_kind(wave)
    assert [len(wave.batches), batches[EmbedTxt].count(), batches[Forward].count()] == [3, 8, 8]
    assert one.accepted == set(one.answers)


def test_a_prompt_in_chunks_takes_as_many_waves_as_its_tokens_ask() -> None:
    world = World(num_pages=2000, num_embeds=4096, max_batch_tokens=512)
    prompt_in_chunks(world, 8, 256, 2048)
    assert [by_kind(wave)[Forward].q_indptr[-1] for wave in world.drain()] == [512] * 4


def test_a_prompt_whose_chunks_use_the_same_embeds_takes_a_wave_for_each() -> None:
    tokens = []
    for embeds, waves in ((256, 4), (1024, 1)):
        world = World(num_pages=2000, num_embeds=4096, max_batch_tokens=2048)
        one = prompt_in_chunks(world, 4, 256, embeds)
        assert len(world.drain()) == waves
        tokens += [one.token(future) for future in one.accepted]
    assert tokens[0] == tokens[1]


def test_no_embed_passes_a_sample_or_a_forward_that_gives_what_it_overwrites() -> None:
    world = World()
    one = world.open(4, 8)
    one.embed(0)
    one.forward(0, 1, 1)
    one.embed(1, 1, 1)
    one.forward(1)
    assert [len(wave.batches) for wave in world.drain()] == [2, 2]
    one.embed(2)
    one.forward(0, 1, 1)
    one.sample(1)
    one.embed(3, 1, 2)
    one.forward(2)
    assert [len(wave.batches) for wave in world.drain()] == [3, 2]


def test_the_work_for_a_command_does_not_grow_with_those_before_it_in_its_queue() -> None:
    """One program could otherwise hold up all others for seconds."""

    def work(pairs: int) -> int:
        """Lines that run in the turn that takes so many tokens, each embedded and run by commands of its own."""
        world = World(num_pages=2000, num_embeds=4096, max_batch_tokens=2048)
        world.check_every = 100  # turns: a check is work, too
        one = world.open(1, 2 * pairs)
        for at in range(pairs):
            one.embed(at, 1, 2 * at)
            one.call("forward", one.queue, [], [one.embeds + 2 * at, 1], [], [one.embeds + 2 * at + 1, 1])
        lines = lines_of(world.turn)
        (wave,) = world.sent
        assert len(by_kind(wave)[Forward].q_embeds) == pairs
        return lines

    few, many = work(50), work(400)
    assert many < 10 * few


def test_a_wave_is_handed_on_before_the_next_one_is_formed() -> None:
    world = World(Adaptive(surplus=0), max_batch_tokens=20)
    one = world.open(12, 48)
    one.embed(0, 40)
    one.forward(0, 40)
    seen = []

    def send(wave: RunWave) -> None:
        now = world.scheduler.statistics()
        seen.append((wave.wave, now.waves_in_flight, now.input_tokens))

    turn = world.scheduler.turn(world.now, [*world.events, HostQuiet()], send)
    assert seen == [(0, 1, 20), (1, 2, 40)]
    assert [wave.wave for wave in turn.waves] == [0, 1]


@pytest.mark.parametrize("long", [False, True], ids=["short steps", "long forwards"])
def test_a_wave_goes_through_a_bounded_number_of_intervals(monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    """Each wave of an inferlet whose contexts have thousands of holes held up all others for seconds."""
    monkeypatch.setattr(taking, "FEW_INTERVALS", 3)
    monkeypatch.setattr(taking, "MOST_INTERVALS", 16)
    world = World(max_context=200)
    one, other = world.open(17, 256), world.open(8, 64)
    one.embed(0, 64)
    one.forward(0, 64, 255)
    one.call("mask_kvpage", 1, [one.pages, 16], [number for slot in range(0, 16, 2) for number in (slot, 1)])
    one.embed(64, 20, at=64)
    world.drain()
    count = 20 if long else 1
    for _ in range(5):  # of 8 intervals each
        one.call("forward", 1, [one.pages, 16], [one.embeds + 64, count], [], [])
    for position in range(3):
        other.step(position)
    rows = [len(wave[Forward].q_indptr) - 1 for wave in waves(world)]
    assert rows == [3, 3, 2], "two of them, beside all others"
    embeds, pages = (one.embeds + 255, greedy(), one.embeds + 254), ([one.pages, 16], [one.pages + 16, 1])
    run = one.call("decode", 1, *embeds, 64, *pages, 3, [], "")
    world.drain()
    assert len(one.tokens[run]) == 3
