"""What may be spent, second by second, by a clock of the test."""

from __future__ import annotations

from math import inf

import pytest

from pie_control.errors import RateLimited
from pie_control.tenants.allowance import BURST, HOUR, MINUTE, Allowance, Recent
from pie_control.tenants.budgets import Budget, Spender
from pie_control.tenants.meters import Meters, Usage
from pie_control.tenants.pauses import LONGEST_SECONDS, Pauses
from pie_control.tenants.tenant import Standing, Tenant

ALICE = Standing(Tenant("alice"))
LAPTOP = Standing(Tenant("alice"), key="key_1")
NOON = 43200.0
"""Seconds that are left of a day."""


def test_the_last_minute_forgets_after_a_minute() -> None:
    spent = Recent(0)
    spent.add(10.0, 3)
    spent.add(20.0, 4)
    assert [spent.total(now) for now in (20.0, 69.9, 70.5, 80.5)] == [7, 7, 4, 0]


def test_it_says_when_it_will_have_forgotten_enough() -> None:
    spent = Recent(0)
    for now in (10.0, 20.0, 30.0):
        spent.add(now, 5)
    assert spent.below(16, 30.0) == 30.0
    for limit in (15, 10, 5):
        free = spent.below(limit, 30.0)
        assert spent.total(free - 0.001) >= limit
        assert spent.total(free) < limit
    assert spent.below(0, 90.0) == inf


def spend_all(one: Spender, seconds: float, step: float = 0.02, wave: int = 64) -> list[tuple[float, int]]:
    """It takes a wave of tokens whenever it may, which is asked as often."""
    taken = []
    for turn in range(int(seconds / step)):
        now = turn * step
        if not one.is_spent(now):
            one.spend(wave, now)
            taken.append((now, wave))
    return taken


@pytest.mark.parametrize("limit", [600, 6000, 60_000])
def test_no_minute_has_more_than_the_budget(limit: int) -> None:
    wave = max(1, limit // 1000)
    taken = spend_all(Spender("tenant a", Budget(tokens_per_minute=limit)), 240, 0.01, wave)
    for begin in range(180):
        spent = sum(tokens for now, tokens in taken if begin <= now < begin + MINUTE)
        assert spent <= limit + wave, begin
    in_a_minute = sum(tokens for now, tokens in taken if 120 <= now < 180)
    assert in_a_minute == pytest.approx(limit, rel=0.02)


def test_who_was_idle_may_spend_at_once_and_goes_on_at_the_rate() -> None:
    one = Spender("tenant a", Budget(tokens_per_minute=6000))
    taken = spend_all(one, 20, 0.001, 1)
    first = sum(tokens for now, tokens in taken if now < 1.0)
    assert first == pytest.approx(6000 * BURST + 100, abs=100)
    assert sum(tokens for now, tokens in taken if 5 <= now < 15) == pytest.approx((1 - BURST) * 1000, rel=0.02)


@pytest.mark.parametrize(("span", "limit", "step", "amount"), [(MINUTE, 6000, 0.01, 1), (HOUR, 360, 0.25, 0.5)])
def test_what_runs_goes_on_evenly_and_never_stands_still(span: float, limit: int, step: float, amount: float) -> None:
    """It spends whenever it may, for four spans, from idle on."""
    one, now, taken = Allowance(0.0, span, least=amount), 0.0, [0.0] * 240  # by sixtieths of a span
    one.use(limit)
    while now < 4 * span:
        while not one.is_spent(now):
            one.spend(amount, now)
            taken[int(now / span * 60)] += amount
        now = max(now + step, one.ready_at(now))
    even = limit / 60
    assert taken[0] == pytest.approx((10 + 1) * even, rel=0.1)
    assert min(taken[1:60]) >= 0.7 * even
    assert max(taken[1:60]) <= even
    assert min(taken[62:]) >= 0.9 * even
    assert max(taken[62:]) <= 1.1 * even
    assert max(sum(taken[begin : begin + 60]) for begin in range(181)) <= limit + amount
    assert sum(taken[120:180]) == pytest.approx(limit, rel=0.02)


def test_what_was_too_much_is_missing_later() -> None:
    one = Spender("tenant a", Budget(tokens_per_minute=600))
    one.spend(300, 0.0)
    assert one.is_spent(0.0)
    ready = one.ready_at(0.0)
    assert ready == pytest.approx((300 - 100 + 1) / 10)
    assert not one.is_spent(ready)


def test_a_key_has_less_than_its_tenant_and_counts_for_both() -> None:
    meters = Meters()
    meters.use({"alice": Budget(tokens_per_minute=60_000)})
    meters.use_key("key_1", Budget(requests_per_minute=2))
    key, tenant = meters.of(LAPTOP), meters.of(ALICE)
    for _ in range(2):
        key.check(0.0, NOON)
        key.requests(0.0)
    with pytest.raises(RateLimited, match="key key_1 has spent its 2 requests a minute: try again in 61 s") as refusal:
        key.check(0.0, NOON)
    assert refusal.value.retry_after == 61
    tenant.check(0.0, NOON)
    key.check(61.0, NOON)
    key.computes(60_000, 61.0)
    with pytest.raises(RateLimited, match="tenant alice has spent its 60000 tokens"):
        tenant.check(61.0, NOON)


def test_processor_time_counts_for_an_hour() -> None:
    meters = Meters()
    meters.use({"alice": Budget(cpu_seconds_per_hour=10)})
    meter = meters.of(ALICE)
    meter.runs(9.5, 0.0)
    meter.check(0.0, NOON)
    meter.runs(1.0, 600.0)
    with pytest.raises(RateLimited, match="has spent its 10 processor seconds an hour: try again in 3015 s") as refusal:
        meter.check(600.0, NOON)
    assert refusal.value.retry_after == 3015
    assert not meter.is_spent(600.0)  # what runs goes on
    meter.check(3616.0, NOON)


def test_beyond_its_processor_time_what_runs_has_turns_at_the_rate() -> None:
    """An inferlet that computes all the time it may, which is told four times a second."""
    meters = Meters()
    meters.use({"alice": Budget(cpu_seconds_per_hour=360)})
    meter, bob = meters.of(LAPTOP), meters.of(Standing(Tenant("bob")))
    pauses, used, now, first = Pauses(meters), 0.0, 0.0, 0.0
    payer = ("alice", "key_1")
    while now < HOUR:
        if payer not in pauses.paused:
            meter.runs(0.25, now)
            bob.runs(0.25, now)
            used += 0.25
        pauses.look(now)
        first = first or (now if pauses.paused else 0.0)
        now += 0.25
    assert first == pytest.approx(360 * BURST / (1 - 0.1), abs=1.0), "nothing is slowed before"
    assert used == pytest.approx(360, abs=1.0)
    assert pauses.paused.keys() == {payer} or not pauses.paused


def test_pauses_are_told_once_and_end_with_the_budget() -> None:
    meters = Meters()
    meters.use({"alice": Budget(cpu_seconds_per_hour=36)})
    meters.of(ALICE).runs(1.0, 0.0)
    pauses, payers = Pauses(meters), {("alice", ""), ("alice", "key_1")}
    assert pauses.look(0.0) == {}
    assert pauses.seconds(0.0) is None
    meters.of(LAPTOP).runs(6.0, 0.0)  # of both
    assert pauses.look(0.0) == dict.fromkeys(payers, True)
    assert pauses.look(50.0) == {}
    assert pauses.seconds(50.0) == LONGEST_SECONDS
    until = max(pauses.paused.values())
    assert 1.0 / 0.01 < until < 1.0 / 0.01 / (1 - BURST)
    assert pauses.seconds(until - 0.05) == pytest.approx(0.05)
    assert pauses.look(until + 0.01) == dict.fromkeys(payers, False)
    meters.of(LAPTOP).runs(36.0, until + 1)
    assert pauses.look(until + 1) == dict.fromkeys(payers, True)
    meters.use({})
    assert pauses.look(until + 2) == dict.fromkeys(payers, False)


def test_a_day_ends_and_the_next_one_begins() -> None:
    meters = Meters()
    meters.use({"alice": Budget(tokens_per_day=100)})
    meter = meters.of(ALICE)
    meter.computes(60, 0.0)
    meter.generates(40, 0.0)
    assert meter.is_spent(0.0)
    assert meter.ready_at(0.0) == inf
    with pytest.raises(RateLimited, match="its 100 tokens of today") as refusal:
        meter.check(0.0, NOON)
    assert refusal.value.retry_after == NOON
    meters.begin_day()
    meter.check(0.0, NOON)
    assert not meter.is_spent(0.0)


def test_what_was_spent_before_counts_for_a_budget_that_comes_later() -> None:
    meters = Meters()
    meters.begin_day({("alice", "key_1"): Usage(1, 50, 20)})
    meters.of(ALICE).computes(20, 0.0)
    assert not meters.limited
    meters.use({"alice": Budget(tokens_per_day=90)})
    assert meters.limited
    assert meters.of(ALICE).over_today
    meters.use({})
    assert not meters.of(ALICE).over_today
    assert not meters.limited
