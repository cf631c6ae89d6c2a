"""Tokens that nobody reads before their decode run is over wait for what else is told to their host."""

from __future__ import annotations

import pytest

from pie_control.application.messages import Results
from pie_control.calls.values import Completion, Done
from pie_control.engine import app_host
from pie_control.engine.app_host import UnreadTokens
from pie_control.errors import WorkerError
from pie_control.scheduling.turn import Progress, RunTokens


def results(*rows: tuple[int, int, int, bool], model: str = "m", completions: tuple[Completion, ...] = ()) -> Results:
    """Rows of owner, future, token and whether the run is over."""
    owners, futures, tokens, over = zip(*rows, strict=True) if rows else ((),) * 4
    return Results(model, completions, runs=RunTokens(owners, futures, tokens, over))


def rows_of(told: Results | None) -> list[tuple[int, int, int, bool]] | None:
    return None if told is None else list(zip(*[list(one) for one in _columns(told.runs)], strict=True))


def _columns(runs: RunTokens) -> tuple[list[int], list[int], list[int], list[bool]]:
    return list(runs.owners), list(runs.futures), list(runs.tokens), list(runs.over)


def test_tokens_wait_until_their_run_is_over_and_come_in_order() -> None:
    unread = UnreadTokens()
    assert rows_of(unread.pass_on(results((1, 7, 10, False)))) == [(1, 7, 10, False)]  # nobody has said so yet
    unread.add(1, 7)
    assert unread.pass_on(results((1, 7, 11, False))) is None
    assert unread.pass_on(results((1, 7, 12, False))) is None
    told = unread.pass_on(results((1, 7, 13, True)))
    assert rows_of(told) == [(1, 7, 11, False), (1, 7, 12, False), (1, 7, 13, True)]
    assert rows_of(unread.pass_on(results((1, 7, 14, False)))) == [(1, 7, 14, False)]  # another run of this number


def test_runs_that_were_cancelled_leave_no_more_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_host, "MOST_UNREAD_RUNS", 4)
    unread = UnreadTokens()
    for run in range(100):
        unread.add(1, run)
    assert len(vars(unread)["_runs"][1]) <= 4
    assert unread.pass_on(results((1, 99, 10, False))) is None


def test_they_go_with_what_somebody_waits_for() -> None:
    unread = UnreadTokens()
    unread.add(1, 7)
    for more in (results((2, 7, 20, False)), results((1, 8, 20, False))):
        assert unread.pass_on(results((1, 7, 11, False))) is None
        assert rows_of(unread.pass_on(more)) == [(1, 7, 11, False), *(rows_of(more) or ())]
    assert unread.pass_on(results((1, 7, 12, False))) is None
    assert rows_of(unread.pass_on(results((2, 1, 9, False), model="other"))) == [(2, 1, 9, False)]
    told = unread.pass_on(results(completions=(Completion(2, 3, Done()),)))
    assert told is not None
    assert rows_of(told) == [(1, 7, 12, False)]
    assert len(told.completions) == 1


def test_news_of_an_address_space_waits_with_the_tokens_but_for_memory_that_is_back() -> None:
    unread = UnreadTokens()
    unread.add(1, 7)
    sent = Progress(1, 3, 2)
    assert unread.pass_on(Results("m", progress=(sent,), runs=results((1, 7, 11, False)).runs)) is None
    told = unread.pass_on(Results("m", progress=(Progress(1, 4, 3),), runs=results((1, 7, 12, True)).runs))
    assert told is not None
    assert list(told.progress) == [sent, Progress(1, 4, 3)]
    assert unread.pass_on(Results("m", progress=(Progress(1, 5, 4),))) is not None  # it reads no run now
    unread.add(1, 8)
    for now in (Progress(1, 6, 5, (4,)), Progress(1, 6, 5, (), ((4, 1),)), Progress(2, 1, 1)):
        assert unread.pass_on(Results("m", progress=(sent,))) is None
        told = unread.pass_on(Results("m", progress=(now,)))
        assert told is not None
        assert list(told.progress) == [sent, now]


def test_a_failure_is_told_at_once_behind_the_tokens() -> None:
    unread = UnreadTokens()
    unread.add(1, 7)
    assert unread.pass_on(results((1, 7, 11, False))) is None
    error = WorkerError("it fails")
    told = unread.pass_on(Results("m", runs=RunTokens((1,), (7,), (-1,), (True,), {0: error})))
    assert told is not None
    assert told.runs.errors == {1: error}


def test_no_more_wait_than_may_and_none_of_an_inferlet_that_has_ended() -> None:
    unread = UnreadTokens()
    unread.add(1, 7)
    for token in range(app_host.MOST_UNREAD):
        assert unread.pass_on(results((1, 7, token, False))) is None
    told = unread.pass_on(results((1, 7, 64, False)))
    assert [token for _, _, token, _ in rows_of(told) or ()] == [*range(app_host.MOST_UNREAD), 64]
    unread.forget(1)
    assert unread.pass_on(results((1, 7, 1, False))) is not None
