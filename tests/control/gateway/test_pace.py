"""How fast places come free, and how many may wait for that."""

from __future__ import annotations

import heapq
import random

import pytest

from pie_control.gateway.waiting.pace import Pace

PLACES = 16


def full(pace: Pace) -> Pace:
    pace.counts(is_full=True, now=0.0)
    return pace


def test_the_pace_is_that_of_the_last_ends() -> None:
    pace = full(Pace(4))
    for number in range(1, 101):
        pace.ends(0.5 * number)
    assert pace.expected(10, 50.0) == pytest.approx(5.0)
    for number in range(1, 101):
        pace.ends(50.0 + 2.0 * number)
    assert pace.expected(10, 250.0) == pytest.approx(20.0)


def test_requests_that_end_together_do_not_pass_for_a_faster_pace() -> None:
    pace, paces = full(Pace(PLACES)), []
    for burst in range(1, 9):
        for number in range(PLACES):
            pace.ends(now := 2.0 * burst + 1e-3 * number)
            paces.append(pace.expected(PLACES, now))
    assert min(paces) > 1.9
    assert max(paces) < 4.0  # the next ones are overdue then


def test_idle_time_does_not_count() -> None:
    pace = full(Pace(1))
    for number in range(1, 17):
        pace.ends(float(number))
    pace.counts(is_full=False, now=16.0)
    pace.ends(500.0)  # of a request that nobody would have waited for
    pace.counts(is_full=True, now=1000.0)
    assert pace.expected(1, 1000.0) == pytest.approx(1.0)


def test_nothing_is_known_at_first() -> None:
    assert Pace(PLACES).surely(1000, 5.0) == 0.0
    assert full(Pace(PLACES)).expected(PLACES, 3.0) == pytest.approx(3.0)  # they may be about to end


@pytest.mark.parametrize("wait", [2.0, 10.0])
def test_few_of_those_who_wait_are_too_late_and_places_stay_taken(wait: float) -> None:
    """Ten times the load, of requests that take 2 seconds in the mean, some of them ten."""
    chance, pace, now = random.Random(1), Pace(PLACES), 0.0
    ends: list[float] = []
    waiting: list[float] = []  # when they came
    late = taken = idle = 0
    for _ in range(30_000):
        now += chance.expovariate(10 * PLACES / 2.0)
        while ends and ends[0] <= now:
            end = heapq.heappop(ends)
            pace.ends(end)
            late += sum(end - came > wait for came in waiting)
            waiting = [came for came in waiting if end - came <= wait]
            if waiting:
                waiting.pop(0)
                heapq.heappush(ends, end + chance.expovariate(0.5))
                taken += 1
            pace.counts(is_full=bool(waiting) or len(ends) >= PLACES, now=end)
        if len(ends) < PLACES:
            idle += 1
            heapq.heappush(ends, now + chance.expovariate(0.5))
        elif not waiting or pace.surely(len(waiting) + 1, now) <= wait:
            waiting.append(now)
        pace.counts(is_full=len(ends) >= PLACES, now=now)
    assert late < 0.07 * taken  # so less than 1 of 100 refusals comes late
    assert idle < 0.01 * 30_000
