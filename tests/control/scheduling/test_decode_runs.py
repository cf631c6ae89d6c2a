"""Decode runs: their tokens are those of decoding step by step, whatever happens around them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.errors import CallError, WorkerError
from pie_control.resources.kinds import PAGES
from pie_control.scheduling import Adaptive, DispatchPolicy, Eager, KOnly, Reason, TOnly, WorkerLost
from pie_control.tenants.budgets import Budget
from pie_inference.protocol import EmbedTxt, Failure, Forward, RunWave, Sample, WaveDone
from tests.helpers.integrity import check_scheduler
from tests.helpers.run_programs import Author, scores_after
from tests.helpers.scheduling import Inferlet, World, by_kind, greedy

POLICIES: list[DispatchPolicy] = [
    Adaptive(),
    Adaptive(max_in_flight=1),
    Adaptive(max_in_flight=3, surplus=0),
    Eager(),
    KOnly(5),
    TOnly(2.0),
]


def finish(world: World) -> None:
    world.lateness = lambda: 0
    world.finish()


def play(world: World, authors: list[Author], choice: random.Random, steps: int) -> None:
    for _ in range(steps):
        if alive := [author for author in authors if author.alive]:
            author = choice.choice(alive)
            try:
                author.step()
            except CallError:  # there is not so much memory at all: the program ends
                author.gone = True
                world.close(author.inferlet)
        world.some_turns(choice)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(POLICIES),
    inferlets=st.integers(1, 4),
    late=st.sampled_from([0, 0, 1, 5]),
    rows=st.sampled_from([1, 2, 64]),
    tokens=st.sampled_from([3, 17, 64]),
    slots=st.sampled_from([3, 64]),
    budget=st.sampled_from([None, None, 60, 600]),
)
def test_tokens_are_those_of_decoding_step_by_step(
    seed: int,
    policy: DispatchPolicy,
    inferlets: int,
    late: int,
    rows: int,
    tokens: int,
    slots: int,
    budget: int | None,
) -> None:
    choice = random.Random(seed)
    limits = {"max_batch_rows": rows, "max_batch_tokens": tokens, "num_token_slots": slots, "max_context": 2000}
    world = World(policy, None, None, None, **{"page_size": 4, "num_pages": 2000, "num_embeds": 2000, **limits})
    world.lateness = lambda: choice.randint(0, late)
    world.meters.use({"default": Budget(tokens_per_minute=budget)})
    authors = [Author(world.open(), random.Random(seed * 7 + number)) for number in range(inferlets)]
    play(world, authors, choice, 40)
    finish(world)
    for author in authors:
        assert author.inferlet.ending is None
        if author.gone:
            continue
        assert author.inferlet.space.waiting == 0
        assert set(author.inferlet.answers) >= author.inferlet.accepted
        assert not author.inferlet.space.runs
        assert not author.inferlet.space.pages.withheld or any(line.reserved for line in author.lines)
        author.check()
    for author in authors:
        world.close(author.inferlet)
    finish(world)
    usage = world.scheduler.statistics()
    assert (usage.pages.free, usage.embeds.free) == (usage.pages.total, usage.embeds.total)
    assert usage.token_slots.free == usage.token_slots.total
    assert usage.runs == 0


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pages=st.integers(16 + 10, 16 + 50),
    embeds=st.integers(200, 600),
    late=st.sampled_from([0, 0, 3]),
    lose_worker=st.booleans(),
)
def test_tokens_are_right_whoever_ends_for_lack_of_pages(
    seed: int, pages: int, embeds: int, late: int, lose_worker: bool
) -> None:
    """Reserved pages are bound as runs reach them: runs wait for pages, and inferlets are ended for others."""
    choice = random.Random(seed)
    world = World(Adaptive(), page_size=4, num_pages=pages, num_embeds=embeds, max_context=2000)
    world.lateness = lambda: choice.randint(0, late)
    authors = [Author(world.open(), random.Random(seed * 7 + number), 60) for number in range(4)]
    play(world, authors, choice, 60)
    if lose_worker:
        world.turn(WorkerLost("it was killed"))
        world.tell()
        assert not any(author.alive for author in authors)
    else:
        finish(world)
    for author in authors:
        if author.alive:
            assert set(author.inferlet.answers) >= author.inferlet.accepted, "somebody was not answered"
        ending = author.inferlet.ending
        assert ending is None or ending.reason in (Reason.EVICTED, Reason.LOST)
        author.check()
        world.close(author.inferlet)
    if lose_worker:
        return
    finish(world)
    usage = world.scheduler.statistics()
    assert (usage.pages.free, usage.embeds.free, usage.runs) == (usage.pages.total, usage.embeds.total, 0)


# ---- one run ---------------------------------------------------------------------------------------------------------


def begin(world: World, steps: int, *, reserve: int = 0, stop: int = 999, tokens: int = 3, pages: int = 4) -> Inferlet:
    """An inferlet with a run behind its first tokens, 65 each. Embeds 0 and 1 are the run's."""
    inferlet = world.open(pages=pages, embeds=8)
    inferlet.embed(0, tokens, at=2)
    inferlet.call("forward", 1, [0, pages], [2, tokens], [0, pages], [1, 1])
    if reserve:
        first = inferlet.call("alloc", 1, "reserved-kvpage", reserve)
        assert first == pages
    whole = [0, pages + reserve]
    stops = [] if stop == 999 else [stop]
    inferlet.call("decode", 1, 1, greedy(), 0, tokens, whole, whole, steps, stops, "")
    return inferlet


def expected(count: int, tokens: int = 3) -> list[int]:
    """The first tokens of such a run."""
    found = [65] * tokens
    for _ in range(count):
        found.append(int(scores_after(found).argmax()))
    return found[tokens:]


def run_of(inferlet: Inferlet) -> int:
    (future,) = inferlet.accepted
    return future


def test_a_run_takes_one_step_a_wave_and_runs_ahead_over_two() -> None:
    world = World(page_size=4)
    world.gated = False
    inferlet = begin(world, 6)
    waves = list(world.turn().waves)
    assert [sorted(kind.__name__ for kind in by_kind(wave)) for wave in waves] == [
        ["EmbedTxt", "Forward", "Sample"]
    ] * 2
    (slot,) = by_kind(waves[0])[Sample].token_slots.tolist()
    assert by_kind(waves[0])[EmbedTxt].tokens.tolist() == [65, 65, 65]
    assert by_kind(waves[1])[EmbedTxt].tokens.tolist() == [-(slot + 1)], "the token of the wave before, by its slot"
    more = world.answer().waves
    assert len(more) == 1
    assert inferlet.tokens == {run_of(inferlet): expected(1)}
    world.drain()
    assert inferlet.answers == {run_of(inferlet): tuple(expected(6))}


def test_at_most_the_steps_in_flight_are_wasted() -> None:
    world = World(page_size=4)
    inferlet = begin(world, 12, stop=expected(3)[-1])
    assert len(world.drain()) == 4
    assert inferlet.answers == {run_of(inferlet): tuple(expected(3))}
    statistics = world.scheduler.statistics()
    assert statistics.commands["sample"] == 4
    assert statistics.batches["sample"] == 4
    assert (statistics.runs, statistics.commands_waiting) == (0, 0)


def test_what_comes_behind_a_run_waits_for_its_end() -> None:
    world = World(page_size=4)
    inferlet = begin(world, 5)
    run = run_of(inferlet)
    sync = inferlet.call("synchronize", 1)
    inferlet.call("embed_txt", 1, [66], [9], [0, 1])
    while run not in inferlet.answers:
        assert sync not in inferlet.answers
        world.turn()
        world.answer()
    world.drain()
    assert sync in inferlet.answers
    assert inferlet.space.waiting == 0


def test_a_cancelled_run_lets_the_next_command_go_at_once() -> None:
    world = World(page_size=4)
    inferlet = begin(world, 12)
    world.turn()
    run, sync = run_of(inferlet), inferlet.call("synchronize", 1)
    assert inferlet.cancel(run)
    assert world.scheduler.statistics().runs == 1
    world.turn()
    assert world.scheduler.statistics().runs == 0
    world.drain()
    assert sync in inferlet.answers
    assert run not in inferlet.answers


def test_a_run_that_is_cancelled_before_its_turn_never_runs() -> None:
    world = World(page_size=4)
    inferlet = begin(world, 12)
    run, sync = run_of(inferlet), inferlet.call("synchronize", 1)
    assert inferlet.cancel(run)
    waves = world.drain()
    assert not any(Sample in by_kind(wave) for wave in waves)
    assert set(inferlet.answers) == {sync}
    check_scheduler(world.scheduler)


def test_reserved_pages_are_bound_when_they_are_reached() -> None:
    world = World(page_size=4)
    world.gated = False
    inferlet = begin(world, 14, reserve=8, tokens=1, pages=1)
    bound = []
    world.turn()
    while world.sent:
        bound.append(world.scheduler.statistics().pages.used)
        world.answer()
    assert bound == sorted(bound)
    assert (bound[0], bound[-1]) == (1, 4), "1 + 13 tokens fill three pages and a half"
    assert inferlet.answers == {run_of(inferlet): tuple(expected(14, 1))}


def test_a_run_without_a_page_waits_as_an_allocation_does() -> None:
    world = World(page_size=4, num_pages=16 + 4)
    older = world.open(pages=2, embeds=1)
    inferlet = begin(world, 10, reserve=2, pages=2)
    world.drain()
    assert inferlet.ending is not None, "nobody younger holds pages: the run's inferlet is ended"
    assert inferlet.ending.reason is Reason.EVICTED
    assert isinstance(inferlet.answers[run_of(inferlet)], CallError)
    assert inferlet.tokens[run_of(inferlet)] == expected(4), "what came before is told, but for two steps in flight"
    assert older.ending is None


def test_an_older_run_gets_the_page_of_a_younger_inferlet() -> None:
    world = World(page_size=4, num_pages=16 + 4)
    inferlet = begin(world, 10, reserve=2, pages=2, tokens=3)
    younger = world.open(pages=2, embeds=1)
    world.drain()
    assert younger.ending is not None
    assert inferlet.answers == {run_of(inferlet): tuple(expected(10))}


def test_a_run_goes_on_when_pages_come_back() -> None:
    world = World(page_size=4, num_pages=16 + 4)
    batch = begin(world, 10, reserve=2, pages=2, tokens=3)
    other = world.open(pages=0, embeds=1)
    other.create_queue()
    first = other.call("alloc", 1, "kvpage", 1)
    world.drain()
    other.call("dealloc", 1, "kvpage", [first, 1])
    world.drain()
    assert batch.ending is None
    assert batch.answers == {run_of(batch): tuple(expected(10))}


@pytest.mark.parametrize("kind", [EmbedTxt, Forward, Sample])
def test_a_row_that_fails_ends_its_run_alone(kind: type) -> None:
    world = World(page_size=4)
    hurt, other = begin(world, 8), begin(world, 8)
    world.turn()
    world.answer()
    wave = world.sent.popleft()
    place = next(number for number, batch in enumerate(wave.batches) if type(batch) is kind)
    done = world.model.run(wave)
    world.turn(WaveDone(done.wave, done.results, 0.0, (Failure(place, 0, "a bad row"),)))
    world.drain()
    assert hurt.ending is None
    error = hurt.answers[run_of(hurt)]
    assert isinstance(error, WorkerError)
    assert "a bad row" in str(error)
    assert hurt.tokens[run_of(hurt)] == expected(1)
    assert not hurt.space.runs
    assert hurt.space.pages.withheld == 0
    assert other.answers == {run_of(other): tuple(expected(8))}


def test_all_rows_of_a_wave_may_fail() -> None:
    world = World(page_size=4)
    runs = [begin(world, 8), begin(world, 8)]
    world.turn()
    world.answer()
    wave = world.sent.popleft()
    failures = tuple(Failure(n, m, "no memory") for n, batch in enumerate(wave.batches) for m in range(batch.count()))
    world.turn(WaveDone(wave.wave, tuple(None for _ in wave.batches), 0.0, failures))
    world.drain()
    assert all(isinstance(one.answers[run_of(one)], WorkerError) for one in runs)
    assert world.scheduler.statistics().token_slots.used == 0


def test_keys_with_holes_are_seen_in_order() -> None:
    """The context ends within a page, and the run goes on in others, whose first slots are filled."""
    world = World(page_size=4)
    inferlet = world.open(pages=4, embeds=8)
    for position, page in ((0, 0), (1, 2)):  # one token each in the pages 0 and 2
        inferlet.embed(position, 1, at=2)
        inferlet.call("forward", 1, [0, 4], [2, 1], [page, 1], [1, 1])
    whole = [0, 1, 2, 2]
    run = inferlet.call("decode", 1, 1, greedy(), 0, 2, whole, [2, 2], 6, [], "")
    waves = world.drain()
    assert inferlet.answers == {run: tuple(expected(6, 2))}
    last = by_kind(waves[-1])[Forward]
    assert last.kv_begins.tolist() == [0, 0, 0]
    assert last.kv_ends.tolist() == [1, 4, 2]
    assert last.dense.tolist() == [False]


def test_a_run_gets_half_of_the_waves_beside_another_inferlet() -> None:
    """Rows are scarce: one run, and one inferlet with eight of them."""
    world = World(Adaptive(), page_size=4, max_batch_rows=1, num_pages=2000)
    alone = begin(world, 60, pages=20)
    many = world.open()
    for _ in range(8):
        queue = many.create_queue()
        pages, embeds = many.call("alloc", queue, "kvpage", 20), many.call("alloc", queue, "emb", 3)
        many.call("embed_txt", queue, [65], [0], [embeds, 1])
        many.call("forward", queue, [pages, 20], [embeds, 1], [pages, 20], [embeds + 1, 1])
        many.call("decode", queue, embeds + 1, greedy(), embeds + 2, 1, [pages, 20], [pages, 20], 60, [], "")
    for _ in range(100):
        world.turn()
        world.answer()
    told = Counter({"alone": len(alone.tokens[run_of(alone)]), "many": sum(map(len, many.tokens.values()))})
    assert 40 <= told["alone"] <= 60, told
    assert 40 <= told["many"] <= 60, told


def test_runs_expect_nobody_and_count_as_ready() -> None:
    world = World(Adaptive(max_in_flight=1), page_size=4)
    begin(world, 8)
    world.turn()
    state = world.scheduler._state()
    assert (sum(state.ready), sum(state.expected), state.in_flight) == (1, 0, 1)
    assert sum(state.ahead) == 1
    assert state.commands == 1


def test_pages_that_were_given_back_stay_bound_while_a_run_uses_them() -> None:
    world = World(page_size=4)
    inferlet = begin(world, 12)
    world.turn()
    inferlet.call("dealloc", 1, "kvpage", [0, 4])
    held = inferlet.held(PAGES)
    world.turn()
    assert (world.scheduler.statistics().pages.used, inferlet.held(PAGES)) == (4, held)
    world.drain()
    assert inferlet.answers == {run_of(inferlet): tuple(expected(12))}
    assert (world.scheduler.statistics().pages.used, inferlet.held(PAGES)) == (0, 0)


def test_a_queue_that_is_destroyed_ends_after_its_run() -> None:
    world = World(page_size=4)
    inferlet = begin(world, 6)
    inferlet.create_queue()
    world.turn()
    inferlet.destroy_queue(1)
    world.drain()
    assert inferlet.answers == {run_of(inferlet): tuple(expected(6))}


def test_batches_hold_rows_of_runs_behind_commands() -> None:
    world = World(page_size=4)
    runs = [begin(world, 8, tokens=tokens) for tokens in (3, 5)]
    world.turn()
    world.answer()
    plain = world.open(pages=2, embeds=64)
    future = plain.step(0, 2, tokens=[66, 67])
    waves: list[RunWave] = []
    while not waves:
        waves = [wave for wave in world.answer().waves if len(by_kind(wave)[Forward].q_indptr) == 4]
        waves += [wave for wave in world.turn().waves if len(by_kind(wave)[Forward].q_indptr) == 4]
    batch = by_kind(waves[0])[Forward]
    assert batch.q_indptr.tolist() == [0, 2, 3, 4]
    assert batch.out_rows.tolist() == [1, 2, 3]
    world.drain()
    assert plain.token(future) == int(scores_after([66, 67]).argmax())
    assert [one.answers[run_of(one)] for one in runs] == [tuple(expected(8, 3)), tuple(expected(8, 5))]


def test_a_run_of_one_step_does_not_wait_for_the_memory_of_its_input() -> None:
    """Nothing is put there. Another queue allocates it, out of what a wave in flight still uses."""
    world = World(num_embeds=40)
    inferlet = world.open(2, 40)
    inferlet.embed(0, 3, tokens=[1, 2, 3])
    inferlet.forward(0, 3, 5)
    world.drain()
    inferlet.embed(3, 20, at=20)
    world.turn()
    behind = inferlet.create_queue()
    inferlet.call("dealloc", inferlet.queue, "emb", [inferlet.embeds + 20, 20])
    added = inferlet.call("alloc", behind, "emb", 20)
    future = inferlet.call("decode", inferlet.queue, inferlet.embeds + 5, greedy(), added + 19, 3, [], [], 1, [], "")
    world.turn()
    assert len(world.sent) == 2, "it goes beside the wave that is under way"
    world.drain()
    assert inferlet.answers[future] == (int(scores_after([1, 2, 3]).argmax()),)
