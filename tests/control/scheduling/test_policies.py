from __future__ import annotations

import pytest

from pie_control.scheduling import Account, Adaptive, DispatchPolicy, Eager, KOnly, SamplingParams, Scheduler, TOnly
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import RunWave

GREEDY = SamplingParams(temperature=0)


def start(policy: DispatchPolicy, inferlets: int) -> tuple[Scheduler, FakeModel, list[Account]]:
    """Inferlets that have run one token; each has queue 1, page 0 and embed 0."""
    model = FakeModel()
    scheduler = Scheduler(model.describe()[0], policy)
    accounts = [scheduler.open(owner, float(owner)) for owner in range(inferlets)]
    for account in accounts:
        queue = account.create_queue()
        account.alloc_kvpage(queue, 1, 0.0)
        account.alloc_emb(queue, 1, 0.0)
        account.embed_txt(queue, [65], [0], [0, 1], 0.0)
    while (wave := scheduler.next_wave(1000.0)) is not None:
        scheduler.wave_done(model.run(wave), 1000.0)
    return scheduler, model, accounts


def issue(accounts: list[Account], future: int, now: float) -> None:
    for account in accounts:
        account.sample(1, 0, GREEDY, 0.5, future, now)


def size(wave: RunWave | None) -> int:
    return 0 if wave is None else len(wave.batches[0].embeds)  # type: ignore[union-attr]


def test_adaptive_sends_at_once_when_the_worker_is_idle() -> None:
    scheduler, _, accounts = start(Adaptive(), 3)
    assert scheduler.next_wave(2000.0) is None
    issue(accounts, 1, 2000.0)
    assert size(scheduler.next_wave(2000.0)) == 3
    assert scheduler.next_deadline() is None


def test_adaptive_does_not_split_programs_that_look_at_every_token() -> None:
    scheduler, model, accounts = start(Adaptive(), 8)
    issue(accounts[:6], 1, 0.0)
    wave = scheduler.next_wave(0.0)
    issue(accounts[6:], 1, 0.0)
    assert scheduler.next_wave(0.0) is None, "six inferlets are about to return"
    assert wave is not None
    scheduler.wave_done(model.run(wave), 0.0)
    issue(accounts[:6], 2, 0.0)
    assert size(scheduler.next_wave(0.0)) == 8


def test_adaptive_runs_ahead_when_nobody_is_expected() -> None:
    scheduler, _, accounts = start(Adaptive(), 8)
    issue(accounts, 1, 0.0)
    assert size(scheduler.next_wave(0.0)) == 8
    issue(accounts, 2, 0.0)
    assert size(scheduler.next_wave(0.0)) == 8
    issue(accounts, 3, 0.0)
    assert scheduler.next_wave(0.0) is None, "two waves are in flight"


def test_eager_sends_every_command_alone() -> None:
    scheduler, model, accounts = start(Eager(), 4)
    issue(accounts, 1, 0.0)
    sizes = []
    while (wave := scheduler.next_wave(0.0)) is not None:
        sizes.append(size(wave))
        scheduler.wave_done(model.run(wave), 0.0)
    assert sizes == [1, 1, 1, 1]


def test_k_only_waits_for_k_commands_or_its_patience() -> None:
    scheduler, model, accounts = start(KOnly(3, patience=0.5), 3)
    issue(accounts[:2], 1, 2000.0)
    assert scheduler.next_wave(2000.1) is None
    assert scheduler.next_deadline() == 2000.5
    issue(accounts[2:], 1, 2000.2)
    wave = scheduler.next_wave(2000.2)
    assert size(wave) == 3
    assert wave is not None
    scheduler.wave_done(model.run(wave), 2000.3)
    issue(accounts[:1], 2, 2001.0)
    assert scheduler.next_wave(2001.4) is None
    assert size(scheduler.next_wave(2001.5)) == 1


def test_t_only_sends_what_has_gathered() -> None:
    scheduler, _, accounts = start(TOnly(0.5), 3)
    issue(accounts[:1], 1, 2000.0)
    issue(accounts[1:], 1, 2000.4)
    assert scheduler.next_wave(2000.4) is None
    assert scheduler.next_deadline() == 2000.5
    assert size(scheduler.next_wave(2000.5)) == 3


@pytest.mark.parametrize("policy", [TOnly(0.5), KOnly(9, patience=0.5)])
def test_a_deadline_that_has_passed_is_not_told_again(policy: DispatchPolicy) -> None:
    scheduler, _, accounts = start(policy, 3)
    for number, account in enumerate(accounts):
        account.sample(1, 0, GREEDY, 0.5, 1, 2000.0 + number)
        scheduler.next_wave(2000.5 + number)
    assert scheduler.next_wave(2010.0) is None, "two waves are in flight"
    assert scheduler.next_deadline() is None
