from __future__ import annotations

from pie_control.engine.restarts import LONGEST_PAUSE_SECONDS, STEADY_SECONDS, Outage, Restarts


def test_the_first_restart_comes_at_once_and_the_others_after_pauses_that_double_up_to_a_bound() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(2000):
        pauses.append(restarts.failed(0.0, "it dies"))
        restarts.try_begins()
    assert pauses == [0.0, *(2.0**n for n in range(9)), *[LONGEST_PAUSE_SECONDS] * 1990]


def test_a_worker_that_has_served_well_is_trusted_again() -> None:
    restarts = Restarts()
    pauses, now = [], 0.0
    for served in (STEADY_SECONDS - 1, STEADY_SECONDS - 1, STEADY_SECONDS, 0.0):
        restarts.serves(now)
        now += served
        pauses.append(restarts.failed(now, "it died"))
        restarts.try_begins()
    assert pauses == [0.0, 1.0, 0.0, 1.0]
    assert restarts.failed(now, "it did not even start") == 2.0


def test_an_outage_says_what_was_tried_and_when_it_goes_on() -> None:
    restarts = Restarts()
    restarts.failed(10.0, "it died")
    restarts.try_begins()
    assert restarts.outage(10.5) == Outage(1, 0.0, "it died")
    assert str(restarts.outage(10.5)) == "restarting, tried once, under way now; last reason: it died"
    restarts.failed(20.0, "no GPU")
    restarts.try_begins()
    restarts.failed(30.0, "still no GPU")
    assert str(restarts.outage(30.5)) == "restarting, tried 2 times, next try in 2 s; last reason: still no GPU"
