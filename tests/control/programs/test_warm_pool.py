"""How many guests wait: told launches, guests that are made, and the time, the policy says a number."""

from __future__ import annotations

import pytest

from pie_control.programs.warm_pool import QUIET_SECONDS, REST_SECONDS, RESTING, WARM_BYTES, Demand, WarmPool, part_of


def burst(demand: Demand, launches: int, now: float) -> None:
    for _ in range(launches):
        demand.taken(now)


def refill(demand: Demand, guests: int) -> None:
    for _ in range(guests):
        demand.made()
    demand.filled()


def trickle(demand: Demand, begin: float, end: float) -> None:
    """A launch now and then, for each of which a guest waits."""
    while begin < end:
        burst(demand, 1, begin)
        refill(demand, 1)
        begin += REST_SECONDS / 2


def test_the_least_wait_before_anything_has_come() -> None:
    assert Demand(WarmPool(80, 100)).wanted(1e6) == 80


def test_few_wait_where_none_is_launched() -> None:
    demand = Demand(WarmPool(80, 100))
    assert demand.wanted(1.0) == 80
    assert demand.wanted(1.0 + REST_SECONDS) == RESTING
    burst(demand, 1, 1000.0)
    assert demand.wanted(1000.0) == demand.wanted(999.0 + REST_SECONDS) == 80
    assert demand.wanted(1000.0 + REST_SECONDS) == RESTING
    assert Demand(WarmPool(2, 100)).wanted(1e6) == 2


def test_a_burst_asks_for_as_many_as_it_has_taken() -> None:
    demand = Demand(WarmPool(8, 100))
    burst(demand, 7, 1.0)
    assert demand.wanted(1.0) == 8
    burst(demand, 43, 1.0)
    assert demand.wanted(1.0) == 50


def test_launches_that_the_pool_keeps_up_with_ask_for_no_more() -> None:
    demand = Demand(WarmPool(8, 100))
    for second in range(200):
        burst(demand, 5, second)
        refill(demand, 5)
    assert demand.wanted(200.0) == 8


def test_launches_faster_than_guests_are_made_ask_for_what_is_missing() -> None:
    demand = Demand(WarmPool(8, 100))
    for second in range(30):
        burst(demand, 3, second)
        demand.made()
    assert demand.wanted(30.0) == 3 + 29 * 2


def test_no_more_than_the_most_wait_however_many_come() -> None:
    demand = Demand(WarmPool(8, 100))
    burst(demand, 5000, 1.0)
    assert demand.wanted(1.0) == 100
    refill(demand, 100)
    burst(demand, 20, 2 * QUIET_SECONDS)
    refill(demand, 20)
    trickle(demand, 2 * QUIET_SECONDS, 3.9 * QUIET_SECONDS)
    assert demand.wanted(3.9 * QUIET_SECONDS) == 20


@pytest.mark.parametrize("begins", [0.0, 0.5, 0.99])
def test_a_burst_is_remembered_for_one_to_two_periods(begins: float) -> None:
    demand = Demand(WarmPool(8, 100))
    demand.wanted(QUIET_SECONDS)  # a period begins
    began = (1 + begins) * QUIET_SECONDS
    burst(demand, 60, began)
    refill(demand, 60)
    trickle(demand, began, began + QUIET_SECONDS)
    assert demand.wanted(began + QUIET_SECONDS) == 60
    trickle(demand, began + QUIET_SECONDS, began + 2 * QUIET_SECONDS)
    assert demand.wanted(began + 2 * QUIET_SECONDS) == 8


def test_a_burst_after_long_silence_is_not_forgotten_at_once() -> None:
    demand = Demand(WarmPool(8, 100))
    burst(demand, 60, 100 * QUIET_SECONDS)
    refill(demand, 60)
    trickle(demand, 100 * QUIET_SECONDS, 101.5 * QUIET_SECONDS)
    assert demand.wanted(101.5 * QUIET_SECONDS) == 60


def test_what_was_taken_of_too_many_is_not_missing_later() -> None:
    demand = Demand(WarmPool(8, 100))
    burst(demand, 8, 1.0)
    demand.filled()  # others still wait: there were too many
    burst(demand, 8, 2.0)
    assert demand.wanted(2.0) == 8


def test_an_empty_pool_stays_empty() -> None:
    demand = Demand(part_of(1, 0, 1000, 1 << 40))
    burst(demand, 50, 1.0)
    assert demand.wanted(1.0) == 0


def test_hosts_share_the_least_and_what_bursts_may_ask_for() -> None:
    assert part_of(1, 128, 1000, 0) == WarmPool(128, 1000)
    assert part_of(3, 128, 1000, 0) == WarmPool(43, 334)


def test_bursts_ask_for_an_eighth_of_the_memory_of_a_host_at_most() -> None:
    assert part_of(1, 4, 1000, 8 * 100 * WARM_BYTES) == WarmPool(4, 100)
    assert part_of(1, 128, 1000, 8 * 100 * WARM_BYTES) == WarmPool(128, 128)
