"""Where an inferlet goes."""

from __future__ import annotations

from pie_control.engine.placement import MOST_AHEAD, HostLoad, Load, place, place_on_host


def test_there_must_be_a_replica() -> None:
    assert place([]) is None


def test_one_that_serves_goes_before_one_that_restarts() -> None:
    assert place([Load(False, 0, 100), Load(True, 50, 1)]) == 1


def test_work_waits_where_none_serves() -> None:
    assert place([Load(False, 3, 0), Load(False, 1, 0)]) == 1


def test_the_fewest_inferlets_then_the_most_free_pages_then_the_first() -> None:
    assert place([Load(True, 2, 100), Load(True, 1, 0)]) == 1
    assert place([Load(True, 1, 10), Load(True, 1, 20)]) == 1
    assert place([Load(True, 1, 10), Load(True, 1, 10)]) == 0


def test_the_one_with_the_export_goes_before_those_with_fewer_inferlets() -> None:
    assert place([Load(True, 0, 9), Load(True, 90, 0, kept=1)]) == 1
    assert place([Load(True, 0, 9), Load(True, 9, 0, 1), Load(True, 8, 0, 1)]) == 2
    assert place([Load(True, 0, 9), Load(False, 0, 0, kept=1)]) == 0


def test_one_with_far_more_inferlets_gets_none_for_keys_that_can_be_computed_again() -> None:
    assert place([Load(True, 3, 9), Load(True, 6 + MOST_AHEAD, 0, kept=1)], is_copy=True) == 1
    assert place([Load(True, 3, 9), Load(True, 7 + MOST_AHEAD, 0, kept=1)], is_copy=True) == 0


def test_the_one_with_the_most_pages_of_a_text_goes_first() -> None:
    assert place([Load(True, 0, 9, kept=3), Load(True, 2, 0, kept=5), Load(True, 0, 9, kept=4)], is_copy=True) == 1


def test_a_host_must_serve_and_have_room() -> None:
    assert place_on_host([]) is None
    assert place_on_host([HostLoad(False, True, 0, 0), HostLoad(True, False, 0, 0)]) is None
    assert place_on_host([HostLoad(False, True, 0, 0), HostLoad(True, True, 9, 9), HostLoad(True, False, 0, 0)]) == 1


def test_the_host_with_the_fewest_inferlets_then_the_most_warm_then_the_least_memory_then_the_first() -> None:
    assert place_on_host([HostLoad(True, True, 2, 0, 9), HostLoad(True, True, 1, 99, 0)]) == 1
    assert place_on_host([HostLoad(True, True, 1, 0, 1), HostLoad(True, True, 1, 99, 2)]) == 1
    assert place_on_host([HostLoad(True, True, 1, 20), HostLoad(True, True, 1, 10)]) == 1
    assert place_on_host([HostLoad(True, True, 1, 10), HostLoad(True, True, 1, 10)]) == 0
