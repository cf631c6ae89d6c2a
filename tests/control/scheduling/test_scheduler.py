"""Memory, endings and answers."""

from __future__ import annotations

import numpy as np
import pytest

from pie_control.errors import Cancelled, Exhausted, NotFound, WorkerError
from pie_control.resources import Quota
from pie_control.scheduling import (
    Account,
    Adaptive,
    Completion,
    Dist,
    Done,
    Failed,
    Logprobs,
    SamplingParams,
    Scheduler,
    TokenValue,
)
from pie_control.scheduling.account import REMEMBERED_TOKENS
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import Failure, RunWave, SampleResult, WaveDone

GREEDY = SamplingParams(temperature=0)


def start(**model: int) -> tuple[Scheduler, FakeModel]:
    sizes = {"page_size": 4, "num_pages": 16 + 10, "max_batch_tokens": 64, "num_embeds": 10}
    fake = FakeModel(**{**sizes, **model})  # type: ignore[arg-type]
    return Scheduler(fake.describe()[0], Adaptive(surplus=0)), fake


def program(scheduler: Scheduler, owner: int, pages: int = 1) -> Account:
    """Queue 1, pages from 0 on, embeds 0 and 1; embed 0 is filled."""
    account = scheduler.open(owner, float(owner))
    queue = account.create_queue()
    account.alloc_kvpage(queue, pages, 0.0)
    account.alloc_emb(queue, 2, 0.0)
    account.embed_txt(queue, [65], [0], [0, 1], 0.0)
    return account


def drain(scheduler: Scheduler, model: FakeModel) -> list[Completion]:
    completions: list[Completion] = []
    while (wave := scheduler.next_wave(0.0)) is not None:
        completions += scheduler.wave_done(model.run(wave), 0.0)
        completions += scheduler.take_completions()
        scheduler.check_integrity()
    completions += scheduler.take_completions()
    return completions


def send(scheduler: Scheduler) -> RunWave:
    wave = scheduler.next_wave(0.0)
    assert wave is not None
    return wave


def test_each_future_gets_its_kind_of_value() -> None:
    scheduler, model = start()
    account = program(scheduler, 5)
    account.sample(1, 0, GREEDY, 0.5, 10, 0.0)
    account.get_next_dist(1, 0, 3, 1.0, 11, 0.0)
    account.get_next_dist(1, 0, 0, 1.0, 12, 0.0)
    account.get_logprobs(1, 0, [4, 5], 13, 0.0)
    account.synchronize(1, 14, 0.0)
    answers = {completion.future: completion.value for completion in drain(scheduler, model)}
    assert set(answers) == {10, 11, 12, 13, 14}
    token, dist, everything, logprobs = answers[10], answers[11], answers[12], answers[13]
    assert isinstance(token, TokenValue)
    assert isinstance(dist, Dist)
    assert isinstance(everything, Dist)
    assert isinstance(logprobs, Logprobs)
    assert token.token == dist.tokens[0]
    assert len(dist.tokens) == len(dist.probabilities) == 3
    assert dist.probabilities.sum() + dist.rest == pytest.approx(1)
    assert len(everything.tokens) == 256
    assert len(logprobs.logprobs) == 2
    assert answers[14] == Done()


def test_synchronize_is_done_when_the_wave_with_the_last_command_is() -> None:
    scheduler, model = start()
    account = program(scheduler, 0)
    first = send(scheduler)
    account.synchronize(1, 7, 0.0)
    assert scheduler.next_wave(0.0) is None
    assert scheduler.take_completions() == ()
    assert scheduler.wave_done(model.run(first), 0.0) == (Completion(0, 7, Done()),)


def test_synchronize_on_an_idle_queue_is_done_without_a_wave() -> None:
    scheduler, _ = start()
    account = scheduler.open(0, 0.0)
    account.synchronize(account.create_queue(), 7, 0.0)
    assert scheduler.next_wave(0.0) is None
    assert scheduler.take_completions() == (Completion(0, 7, Done()),)


def test_synchronize_waits_for_every_part_of_a_split_forward() -> None:
    scheduler, model = start(max_batch_tokens=20, num_embeds=64, num_pages=30)
    account = scheduler.open(0, 0.0)
    queue = account.create_queue()
    account.alloc_kvpage(queue, 12, 0.0)
    account.alloc_emb(queue, 48, 0.0)
    account.embed_txt(queue, [65] * 48, list(range(48)), [0, 48], 0.0)
    account.forward(queue, [0, 12], [0, 48], [0, 12], [], 0.0)
    account.synchronize(queue, 7, 0.0)
    answered = [len(scheduler.wave_done(model.run(send(scheduler)), 0.0)) for _ in range(3)]
    assert answered == [0, 0, 1]


def test_a_queue_ends_after_the_commands_that_it_holds() -> None:
    scheduler, model = start()
    account = program(scheduler, 0)
    account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    account.destroy_queue(1)
    with pytest.raises(NotFound, match="queue 1"):
        account.synchronize(1, 2, 0.0)
    assert len(drain(scheduler, model)) == 1
    assert account.usage().queues == 0


def test_freed_pages_come_back_when_their_last_wave_has_completed() -> None:
    scheduler, model = start()
    account = program(scheduler, 0, pages=10)
    account.forward(1, [], [0, 1], [0, 1], [], 0.0)
    first = send(scheduler)
    account.dealloc_kvpage(1, [0, 10], 0.0)
    account.alloc_kvpage(1, 10, 0.0)
    assert scheduler.next_wave(0.0) is None
    assert scheduler.take_evictions() == ()
    assert scheduler.statistics().pages.quarantined == 10
    scheduler.wave_done(model.run(first), 0.0)
    assert scheduler.statistics().pages.free == 10
    assert scheduler.next_wave(0.0) is None
    assert scheduler.statistics().pages.used == 10


def test_pages_are_not_freed_while_another_queue_has_an_earlier_command_that_uses_them() -> None:
    scheduler, model = start(max_batch_rows=1)
    account = program(scheduler, 0)
    drain(scheduler, model)
    other = account.create_queue()
    account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    account.sample(1, 0, GREEDY, 0.5, 2, 0.0)
    account.dealloc_emb(other, [0, 2], 0.0)
    first = send(scheduler)
    assert scheduler.statistics().embeds.quarantined == 0, "the second sample has not been dispatched"
    second = send(scheduler)
    assert scheduler.statistics().embeds.quarantined == 2
    scheduler.wave_done(model.run(first), 0.0)
    assert scheduler.statistics().embeds.quarantined == 2
    scheduler.wave_done(model.run(second), 0.0)
    assert scheduler.statistics().embeds.free == 10


def test_an_embed_freed_by_one_inferlet_is_not_reused_in_the_same_wave() -> None:
    scheduler, model = start(num_embeds=2)
    first, second = scheduler.open(0, 0.0), scheduler.open(1, 1.0)
    for account in (first, second):
        queue = account.create_queue()
        account.alloc_emb(queue, 2, 0.0)
        account.embed_txt(queue, [65], [0], [0, 1], 0.0)
        account.sample(queue, 0, GREEDY, 0.5, 1, 0.0)
        account.dealloc_emb(queue, [0, 2], 0.0)
    assert [len(wave.batches[0].embeds) for wave in _run_all(scheduler, model)] == [1, 1]  # type: ignore[union-attr]
    assert scheduler.take_evictions() == ()


def _run_all(scheduler: Scheduler, model: FakeModel) -> list[RunWave]:
    waves = []
    while (wave := scheduler.next_wave(0.0)) is not None:
        waves.append(wave)
        done = model.run(wave)
        assert not done.failures
        scheduler.wave_done(done, 0.0)
    return waves


def test_the_youngest_inferlet_is_ended_when_pages_run_out() -> None:
    scheduler, model = start()
    old, middle, young = (program(scheduler, owner, pages=3) for owner in (1, 2, 3))
    drain(scheduler, model)
    young.sample(1, 0, GREEDY, 0.5, 9, 0.0)
    flying = send(scheduler)
    old.alloc_kvpage(1, 2, 0.0)
    assert scheduler.next_wave(0.0) is None
    (eviction,) = scheduler.take_evictions()
    assert eviction.owner == 3
    assert scheduler.take_evictions() == ()
    with pytest.raises(Exhausted, match="first come, first served"):
        young.create_queue()
    assert scheduler.close(young, Exhausted(eviction.message))[0].future == 9
    assert scheduler.next_wave(0.0) is None, "its pages may still be in use"
    assert scheduler.wave_done(model.run(flying), 0.0) == (), "answered when it was closed"
    scheduler.next_wave(0.0)
    assert (old.usage().commands, middle.usage().pages) == (0, 3)
    assert scheduler.take_evictions() == ()


def test_the_requester_is_ended_when_it_is_the_youngest() -> None:
    scheduler, model = start()
    program(scheduler, 1, pages=8)
    young = program(scheduler, 2, pages=2)
    drain(scheduler, model)
    young.alloc_kvpage(1, 1, 0.0)
    scheduler.next_wave(0.0)
    assert [eviction.owner for eviction in scheduler.take_evictions()] == [2]


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    scheduler, model = start()
    first = program(scheduler, 1, pages=6)
    second = program(scheduler, 2, pages=1)
    drain(scheduler, model)
    first.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    flying = send(scheduler)
    first.dealloc_kvpage(1, [0, 6], 0.0)  # in quarantine until the wave is done
    first.alloc_kvpage(1, 8, 0.0)
    second.alloc_kvpage(1, 1, 0.0)
    scheduler.next_wave(0.0)
    assert (first.pages.bound, second.pages.bound) == (0, 1)
    scheduler.wave_done(model.run(flying), 0.0)
    scheduler.next_wave(0.0)
    assert (first.pages.bound, second.pages.bound) == (8, 2)
    assert scheduler.take_evictions() == ()


def test_close_answers_what_waits_and_what_flies() -> None:
    scheduler, model = start()
    account = program(scheduler, 4)
    account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    flying = send(scheduler)
    account.sample(1, 0, GREEDY, 0.5, 2, 0.0)
    reason = Cancelled("the client went away")
    assert scheduler.close(account, reason) == (Completion(4, 1, Failed(reason)), Completion(4, 2, Failed(reason)))
    assert scheduler.close(account, reason) == ()
    with pytest.raises(Cancelled, match="went away"):
        account.alloc_kvpage(1, 1, 0.0)
    assert scheduler.wave_done(model.run(flying), 0.0) == ()
    assert scheduler.statistics().pages.used == scheduler.statistics().token_slots.used == 0


def test_a_lost_worker_ends_everything() -> None:
    scheduler, _ = start()
    accounts = [program(scheduler, owner) for owner in (0, 1)]
    for account in accounts:
        account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    send(scheduler)
    completions = scheduler.worker_lost("killed by signal 9")
    assert [(completion.owner, completion.future) for completion in completions] == [(0, 1), (1, 1)]
    assert scheduler.next_wave(0.0) is None
    for call in (accounts[0].create_queue, lambda: scheduler.open(7, 0.0)):
        with pytest.raises(WorkerError, match="signal 9"):
            call()


def test_a_failed_sample_hurts_only_those_that_name_it() -> None:
    scheduler, _ = start()
    account, other = program(scheduler, 0), program(scheduler, 1)
    for one in (account, other):
        one.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    account.embed_txt(1, [0x8000_0001], [1], [1, 1], 0.0)
    wave = send(scheduler)
    done = scheduler.wave_done(
        WaveDone(wave.wave, (None, None), 0.0, tuple(Failure(1, n, "no memory") for n in range(2))), 0.0
    )
    assert [(completion.owner, completion.future) for completion in done] == [(0, 1), (0, None), (1, 1)]
    with pytest.raises(WorkerError, match="no memory"):
        account.create_queue()
    with pytest.raises(WorkerError, match="no memory"):
        other.embed_txt(1, [0x8000_0001], [1], [1, 1], 0.0)
    other.sample(1, 0, GREEDY, 0.5, 2, 0.0)


def test_a_failed_command_ends_only_its_inferlet() -> None:
    scheduler, _ = start()
    accounts = [program(scheduler, owner) for owner in range(3)]
    for account in accounts:
        account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    wave = send(scheduler)
    answer = WaveDone(
        wave.wave, (None, SampleResult(np.array([7, 8, 9], np.int32))), 0.0, (Failure(0, 1, "no memory"),)
    )
    told = [(each.owner, each.future, type(each.value)) for each in scheduler.wave_done(answer, 0.0)]
    assert told == [(1, None, Failed), (0, 1, TokenValue), (1, 1, Failed), (2, 1, TokenValue)]
    with pytest.raises(WorkerError, match="no memory"):
        accounts[1].create_queue()
    scheduler.check_integrity()


def test_an_answer_that_does_not_fit_is_refused() -> None:
    scheduler, _ = start()
    account = program(scheduler, 0)
    account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    wave = send(scheduler)
    for done in (
        WaveDone(wave.wave + 1, (None, None), 0.0),
        WaveDone(wave.wave, (None,), 0.0),
        WaveDone(wave.wave, (None, SampleResult(np.zeros(2, np.int32))), 0.0),
        WaveDone(wave.wave, (None, None), 0.0, (Failure(1, 1, "why"),)),
        WaveDone(wave.wave, (None, None), 0.0, (Failure(2, 0, "why"),)),
    ):
        with pytest.raises(WorkerError, match="worker answered"):
            scheduler.wave_done(done, 0.0)


def test_old_tokens_are_forgotten() -> None:
    scheduler, model = start()
    account = program(scheduler, 0)
    for future in range(1, REMEMBERED_TOKENS + 2):
        account.sample(1, 0, GREEDY, 0.5, future, 0.0)
    drain(scheduler, model)
    account.embed_txt(1, [0x8000_0002], [1], [1, 1], 0.0)
    with pytest.raises(NotFound, match="reference 1 "):
        account.embed_txt(1, [0x8000_0001], [1], [1, 1], 0.0)


def test_a_pool_smaller_than_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 16 pages"):
        start(num_pages=16)


def test_statistics_tell_what_ran() -> None:
    scheduler, model = start()
    account = program(scheduler, 0)
    account.forward(1, [], [0, 1], [0, 1], [1, 1], 0.0)
    account.sample(1, 1, GREEDY, 0.5, 1, 0.0)
    assert scheduler.statistics().commands_waiting == 5
    drain(scheduler, model)
    statistics = scheduler.statistics()
    assert statistics.commands == statistics.batches == {"embed_txt": 1, "forward": 1, "sample": 1}
    assert (statistics.waves, statistics.input_tokens, statistics.inferlets) == (1, 1, 1)
    assert statistics.worker_seconds > 0


def test_quota_of_futures_counts_those_not_answered() -> None:
    model = FakeModel()
    scheduler = Scheduler(model.describe()[0], quota=Quota(futures=1))
    account = program(scheduler, 0)
    for future in (1, 2):
        account.sample(1, 0, GREEDY, 0.5, future, 0.0)
        assert len(drain(scheduler, model)) == 1


def test_an_answer_that_does_not_fit_in_part_answers_nothing() -> None:
    scheduler, model = start()
    account = program(scheduler, 0)
    account.sample(1, 0, GREEDY, 0.5, 1, 0.0)
    account.get_logprobs(1, 0, [4, 5], 2, 0.0)
    wave = send(scheduler)
    results = model.run(wave).results
    for wrong in (None, SampleResult(np.zeros(2, np.int32))):
        with pytest.raises(WorkerError, match="2 rows"):
            scheduler.wave_done(WaveDone(wave.wave, (*results[:2], wrong), 0.0), 0.0)
    assert [done.future for done in scheduler.worker_lost("it speaks another protocol")] == [1, 2]
