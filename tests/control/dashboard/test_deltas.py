"""What a viewer is told."""

from __future__ import annotations

from pie_control.dashboard.deltas import About, Deltas, Now, WaveRow

ABOUT = About("i1", "alice", "chat", 1.0)
RUNS = Now("running", "", 0.0, 2, 3, 0.5, 0.0)
MORE = RUNS._replace(tokens_generated=3)


def describe(number: int) -> About:
    return ABOUT._replace(id=f"i{number}")


def test_first_everything_then_what_has_changed() -> None:
    deltas = Deltas()
    first = deltas.next(1.0, {1: RUNS, 2: RUNS}, describe, {"hosts": [1], "outages": []})
    assert first.about == {1: describe(1), 2: describe(2)}
    assert first.now == {1: RUNS, 2: RUNS}
    assert first.sections == {"hosts": [1], "outages": []}
    second = deltas.next(2.0, {1: MORE, 2: RUNS}, describe, {"hosts": [2]})
    assert (second.about, second.now, second.gone, second.sections) == ({}, {1: MORE}, [], {"hosts": [2]})


def test_nothing_new_is_nothing() -> None:
    deltas = Deltas()
    deltas.next(1.0, {1: RUNS}, describe, {"hosts": [1]})
    delta = deltas.next(2.0, {1: RUNS}, describe, {"hosts": [1]})
    assert (delta.about, delta.now, delta.gone, delta.sections, delta.waves) == ({}, {}, [], {}, [])


def test_what_is_gone_is_told_once_and_may_come_back() -> None:
    deltas = Deltas()
    deltas.next(1.0, {1: RUNS}, describe, {})
    assert deltas.next(2.0, {}, describe, {}).gone == [1]
    assert deltas.next(3.0, {}, describe, {}).gone == []
    assert deltas.next(4.0, {1: RUNS}, describe, {}).about == {1: describe(1)}


def test_waves_are_told_as_they_are() -> None:
    wave = WaveRow("demo", 1, 1.0, 0.01, 4, 2, {"forward": [1, 2]})
    delta = Deltas().next(1.0, {}, describe, {}, [wave], skipped=3)
    assert (delta.waves, delta.skipped) == ([wave], 3)
