"""What goes into a wave, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pie_control.scheduling import Account, Adaptive, DispatchPolicy, SamplingParams, Scheduler
from pie_control.scheduling.waves import PATIENCE
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import CopyKvpage, EmbedTxt, Forward, GetLogprobs, GetNextDist, RunWave, Sample

GREEDY = SamplingParams(temperature=0)
SIZE = 4


class Worker:
    """A scheduler with a fake worker that answers at once."""

    def __init__(self, policy: DispatchPolicy | None = None, **model: int) -> None:
        sizes = {"page_size": SIZE, "num_pages": 200, "max_batch_tokens": 64}
        self.model = FakeModel(**{**sizes, **model})  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.model.describe()[0], policy)
        self.opened = 0

    def open(self, pages: int = 8, embeds: int = 64) -> Program:
        self.opened += 1
        return Program(self.scheduler.open(self.opened, float(self.opened)), pages, embeds)

    def wave(self) -> dict[type, Any]:
        """Sends and answers the next wave; its batches by type."""
        wave = self.scheduler.next_wave(0.0)
        if wave is None:
            return {}
        self.run(wave)
        return {type(batch): batch for batch in wave.batches}

    def run(self, wave: RunWave) -> None:
        done = self.model.run(wave)
        assert not done.failures, done.failures
        self.scheduler.wave_done(done, 0.0)

    def waves(self) -> list[dict[type, Any]]:
        """All waves until nothing is left."""
        found = []
        while wave := self.wave():
            found.append(wave)
        return found


class Program:
    """An inferlet with one queue, one range of pages and one of embeds."""

    def __init__(self, account: Account, pages: int, embeds: int) -> None:
        self.account = account
        self.queue = account.create_queue()
        self.pages = account.alloc_kvpage(self.queue, pages, 0.0)
        self.embeds = account.alloc_emb(self.queue, embeds, 0.0)
        self.count = pages
        self.futures = 0

    def embed(self, position: int, count: int = 1, at: int = 0, queue: int | None = None) -> None:
        positions = list(range(position, position + count))
        self.account.embed_txt(queue or self.queue, [65] * count, positions, [self.embeds + at, count], 0.0)

    def forward(self, at: int = 0, count: int = 1, output: int | None = None, queue: int | None = None) -> None:
        pages = [self.pages, self.count]
        outputs = [] if output is None else [self.embeds + output, 1]
        self.account.forward(queue or self.queue, pages, [self.embeds + at, count], pages, outputs, 0.0)

    def sample(self, at: int, queue: int | None = None) -> int:
        self.futures += 1
        self.account.sample(queue or self.queue, self.embeds + at, GREEDY, 0.5, self.futures, 0.0)
        return self.futures

    def step(self, position: int, count: int = 1) -> None:
        self.embed(position, count)
        self.forward(0, count, 63)
        self.sample(63)


def test_a_step_is_one_wave_in_stage_order() -> None:
    worker = Worker()
    program = worker.open()
    program.step(0, 5)
    assert list(worker.wave()) == [EmbedTxt, Forward, Sample]
    assert worker.waves() == []


def test_the_next_step_waits_for_the_next_wave() -> None:
    worker = Worker()
    program = worker.open()
    program.step(0)
    program.step(1)
    assert [list(wave) for wave in worker.waves()] == [[EmbedTxt, Forward, Sample]] * 2


def test_all_kinds_of_output_share_a_wave() -> None:
    worker = Worker()
    program = worker.open()
    program.step(0)
    program.account.get_next_dist(program.queue, program.embeds + 63, 2, 1.0, 77, 0.0)
    program.account.get_logprobs(program.queue, program.embeds + 63, [1], 78, 0.0)
    program.sample(63)
    wave = worker.wave()
    assert list(wave) == [EmbedTxt, Forward, Sample, GetNextDist, GetLogprobs]
    assert len(wave[Sample].embeds) == 2


def test_inferlets_share_batches() -> None:
    worker = Worker()
    for _ in range(5):
        worker.open().step(0)
    (wave,) = worker.waves()
    assert [len(wave[EmbedTxt].embeds), len(wave[Forward].q_embeds), len(wave[Sample].embeds)] == [5, 5, 5]


def test_a_prefill_in_two_forwards_shares_a_batch() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0, 6)
    program.forward(0, 4)
    program.forward(4, 2, output=63)
    program.sample(63)
    (wave,) = worker.waves()
    assert wave[Forward].q_indptr.tolist() == [0, 4, 6]


def test_a_forward_that_reads_an_output_of_the_batch_waits() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0)
    program.forward(0, output=5)
    program.forward(5, output=6)
    assert [list(wave) for wave in worker.waves()] == [[EmbedTxt, Forward], [Forward]]


def test_an_embed_is_written_once_in_a_batch() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0)
    program.embed(1, at=1)
    program.embed(2, at=0)
    assert [wave[EmbedTxt].embeds.tolist() for wave in worker.waves()] == [[0, 1], [0]]


def test_two_copies_of_a_queue_are_two_waves() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0, SIZE)
    program.forward(0, SIZE)
    worker.waves()
    slot = program.pages * SIZE
    program.account.copy_kvpage(program.queue, [slot, 2], [slot + SIZE, 2], 0.0)
    program.account.copy_kvpage(program.queue, [slot + SIZE, 2], [slot + 2 * SIZE, 2], 0.0)
    assert [wave[CopyKvpage].source.tolist() for wave in worker.waves()] == [[0, 1], [4, 5]]


def test_a_slot_that_trim_freed_is_not_filled_twice_in_a_wave() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0, 2)
    program.forward(0)
    program.account.trim_kvpage(program.queue, [program.pages, 1], 0, 0.0)
    program.forward(1)
    assert [wave[Forward].q_slots.tolist() for wave in worker.waves()] == [[0], [0]]


def test_a_context_of_one_range_is_dense() -> None:
    worker = Worker()
    program = worker.open()
    program.step(0, 6)
    program.step(6)
    first, second = (wave[Forward] for wave in worker.waves())
    assert (first.kv_pages.tolist(), first.kv_ends.tolist(), first.dense.tolist()) == ([0, 1], [4, 2], [True])
    assert (second.kv_pages.tolist(), second.kv_ends.tolist(), second.dense.tolist()) == ([0, 1], [4, 3], [True])


def test_a_context_with_a_partial_page_inside_is_not_dense() -> None:
    worker = Worker()
    program = worker.open()
    program.step(0, 2)
    program.embed(2)
    account, pages = program.account, program.pages
    account.forward(program.queue, [pages, 1], [program.embeds, 1], [pages + 3, 1], [], 0.0)
    forward = worker.waves()[-1][Forward]
    assert (forward.kv_pages.tolist(), forward.kv_ends.tolist(), forward.dense.tolist()) == ([0, 3], [2, 1], [False])


def test_tokens_at_later_positions_are_left_out() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0, 6)
    program.forward(0, 6)
    program.embed(3)
    program.forward(0)
    forward = worker.waves()[-1][Forward]
    assert (forward.kv_pages.tolist(), forward.kv_ends.tolist()) == ([0, 1], [3, 3])
    assert forward.kv_begins.tolist() == [0, 2]
    assert forward.mask_bits is None


def test_queries_that_see_different_tokens_have_a_mask() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0, 3)
    program.forward(0, 3)
    program.embed(1, 2)
    program.forward(0, 2)
    forward = worker.waves()[-1][Forward]
    bits = np.unpackbits(forward.mask_bits, bitorder="little", count=8).reshape(2, 4)
    assert bits.tolist() == [[1, 0, 1, 0], [1, 1, 1, 1]]  # context at 0, 1 then own at 1, 2


def test_a_forward_without_output_pages_uses_scratch_slots() -> None:
    worker = Worker()
    program = worker.open()
    program.step(0, 3)
    program.embed(3, 2)
    account, pages = program.account, program.pages
    account.forward(program.queue, [pages, 1], [program.embeds, 2], [], [program.embeds + 63, 1], 0.0)
    program.sample(63)
    account.trim_kvpage(program.queue, [pages, 1], 3, 0.0)  # it took no slot: nothing is lost
    program.step(3)
    waves = worker.waves()
    scratch = (200 - 16) * SIZE
    assert waves[1][Forward].q_slots.tolist() == [scratch, scratch + 1]
    assert waves[2][Forward].q_slots.tolist() == [3]


def test_a_long_prefill_takes_what_decodes_leave() -> None:
    worker = Worker(max_batch_tokens=20)
    long, *short = (worker.open(pages=16) for _ in range(4))
    long.step(0, 50)
    for program in short:
        program.step(0)
    waves = worker.waves()
    assert [len(wave[Forward].q_embeds) for wave in waves] == [20, 20, 13]
    assert [len(wave[Sample].embeds) if Sample in wave else 0 for wave in waves] == [3, 0, 1]
    assert waves[0][Forward].q_indptr.tolist() == [0, 1, 2, 3, 20]
    assert waves[1][Forward].kv_ends.tolist() == [SIZE] * 9 + [1]
    assert [len(wave[Forward].out_rows) for wave in waves] == [3, 0, 1]


def test_outputs_of_a_split_forward_fall_where_their_tokens_are() -> None:
    worker = Worker(max_batch_tokens=20)
    program = worker.open(pages=16)
    program.embed(0, 30)
    pages = [program.pages, 16]
    program.account.forward(program.queue, pages, [program.embeds, 30], pages, [program.embeds + 40, 15], 0.0)
    first, second = worker.waves()
    assert first[Forward].out_rows.tolist() == [15, 16, 17, 18, 19]
    assert second[Forward].out_rows.tolist() == list(range(10))
    assert first[Forward].out_embeds.tolist() + second[Forward].out_embeds.tolist() == list(range(40, 55))


def test_rows_beyond_the_maximum_wait() -> None:
    worker = Worker(max_batch_rows=2)
    for _ in range(5):
        worker.open().step(0)
    assert [len(wave[Sample].embeds) for wave in worker.waves()] == [2, 2, 1]


def test_a_sample_waits_for_a_token_slot() -> None:
    worker = Worker(num_token_slots=1)
    for _ in range(2):
        worker.open().step(0)
    assert [len(wave[Sample].embeds) for wave in worker.waves()] == [1, 1]


def test_higher_priority_goes_first_then_longest_waiting() -> None:
    worker = Worker(max_batch_rows=1)
    programs = [worker.open() for _ in range(3)]
    worker.waves()  # memory is bound in the order of opening
    for program in programs:
        program.step(0)
    programs[1].account.set_queue_priority(programs[1].queue, 1)
    order = [wave[Sample].embeds.tolist()[0] // 64 for wave in worker.waves()]
    assert order == [1, 0, 2]


@pytest.mark.parametrize("tokens", [1, 40])
def test_a_command_of_low_priority_is_passed_over_a_bounded_number_of_times(tokens: int) -> None:
    worker = Worker(max_batch_tokens=40)
    low, high = worker.open(pages=16), worker.open(pages=64)
    low.account.set_queue_priority(low.queue, -1)
    low.embed(0, tokens)
    pages = [] if tokens == 40 else [low.pages, 16]  # without pages, it cannot be split
    low.account.forward(low.queue, [], [low.embeds, tokens], pages, [], 0.0)
    high.embed(0, 40)
    waves = 0
    while low.account.usage().commands and waves < 2 * PATIENCE:
        waves += 1
        for at in range(0, 40, 8):  # short forwards that use up the budget of the wave
            high.forward(at, 8)
        worker.wave()
        high.account.trim_kvpage(high.queue, [high.pages, 64], 0, 0.0)
    assert PATIENCE <= waves <= PATIENCE + 2


def test_branches_that_read_a_common_prefix_share_a_batch() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0, SIZE)
    program.forward(0, SIZE, output=63)
    worker.waves()
    account, prefix = program.account, [program.pages, 1]
    for branch in range(4):
        queue = account.create_queue()
        program.embed(SIZE, at=branch, queue=queue)
        own = [program.pages + 1 + branch, 1]
        account.forward(queue, prefix + own, [program.embeds + branch, 1], own, [], 0.0)
        program.sample(63, queue=queue)
    (wave,) = worker.waves()
    assert [len(wave[Forward].q_embeds), len(wave[Sample].embeds)] == [4, 4]


def test_a_branch_waits_until_the_prefix_was_dispatched() -> None:
    worker = Worker()
    program = worker.open()
    worker.waves()
    other = program.account.create_queue()
    program.embed(0, SIZE, queue=other)
    program.embed(SIZE, at=SIZE)
    worker.waves()
    program.forward(0, SIZE, queue=other)
    program.forward(SIZE)
    assert [wave[Forward].q_positions.tolist() for wave in worker.waves()] == [[0, 1, 2, 3], [4]]


def test_queues_that_write_and_read_one_embed_keep_the_order_of_issue() -> None:
    worker = Worker()
    program = worker.open()
    other = program.account.create_queue()
    worker.waves()
    program.embed(0)
    program.forward(0, output=63)
    program.sample(63)
    program.embed(7, at=63, queue=other)  # must not overwrite what the sample reads
    assert [list(wave) for wave in worker.waves()] == [[EmbedTxt, Forward, Sample], [EmbedTxt]]


def test_many_readers_of_an_embed_all_come_before_its_next_writer() -> None:
    worker = Worker(max_batch_rows=1)
    program = worker.open()
    others = [program.account.create_queue() for _ in range(2)]
    program.embed(0, at=63)
    worker.waves()
    for queue in (program.queue, *others):
        program.sample(63, queue=queue)
    program.embed(7, at=63, queue=others[0])
    assert [list(wave) for wave in worker.waves()] == [[Sample], [Sample], [Sample], [EmbedTxt]]


def test_run_ahead_reads_the_token_slot_until_the_value_is_known() -> None:
    worker = Worker(Adaptive(surplus=0))
    program = worker.open()
    program.step(0)
    program.account.embed_txt(program.queue, [0x8000_0001], [1], [program.embeds, 1], 0.0)
    first, second = worker.scheduler.next_wave(0.0), worker.scheduler.next_wave(0.0)
    assert first is not None
    assert second is not None
    assert isinstance(second.batches[0], EmbedTxt)
    assert isinstance(first.batches[2], Sample)
    assert second.batches[0].tokens.tolist() == [-1 - first.batches[2].token_slots[0]]
    worker.run(first)
    worker.run(second)
    program.account.embed_txt(program.queue, [0x8000_0001], [2], [program.embeds, 1], 0.0)
    assert worker.wave()[EmbedTxt].tokens[0] >= 0


def test_a_penalty_that_names_a_token_of_the_same_wave_waits() -> None:
    worker = Worker()
    program = worker.open()
    program.embed(0)
    program.forward(0, output=63)
    future = program.sample(63)
    recent = [0x8000_0000 + future, 3]
    program.account.sample(program.queue, program.embeds + 63, GREEDY, 0.5, 50, 0.0, recent)
    first, second = worker.waves()
    assert (len(first[Sample].embeds), len(second[Sample].embeds)) == (1, 1)
    assert second[Sample].recent.tolist()[1] == 3
    assert second[Sample].recent.tolist()[0] >= 0
