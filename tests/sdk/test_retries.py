"""`retry`: which errors, how often, how long between, and what is left at the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inferlet_sdk import InvalidArgument, RequestFailed, SchemaMismatch, WorkerFailed, http_get, retry
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import install


class Failing:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each pause."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def test_it_gives_what_the_first_call_gives_that_does_not_fail(pauses: list[float]) -> None:
    install()
    function = Failing(RequestFailed("a"), WorkerFailed("b"))
    assert run(retry(function, pause=2, factor=3)) == "done"
    assert function.calls == 3
    assert pauses == [2, 6]


def test_plain_functions_too() -> None:
    install()
    values = iter([1, 2])
    assert run(retry(lambda: next(values))) == 1


def test_the_last_error_is_raised_and_says_how_often() -> None:
    install()
    function = Failing(*(RequestFailed(str(n)) for n in range(9)))
    with pytest.raises(RequestFailed, match="3") as caught:
        run(retry(function, times=4, pause=0))
    assert function.calls == 4
    assert caught.value.__notes__ == ["retry: tried 4 times"]


def test_other_errors_are_raised_at_once() -> None:
    install()
    function = Failing(InvalidArgument("no"))
    with pytest.raises(InvalidArgument):
        run(retry(function))
    assert function.calls == 1


@pytest.mark.parametrize("on", [SchemaMismatch, (SchemaMismatch, KeyError), lambda error: "wrong" in str(error)])
def test_errors_are_named_by_class_or_by_a_function(on: Any) -> None:
    install()
    function = Failing(SchemaMismatch("wrong"))
    assert run(retry(function, on=on, pause=0)) == "done"


def test_pauses_are_bounded(pauses: list[float]) -> None:
    install()
    function = Failing(*(RequestFailed("") for _ in range(4)))
    run(retry(function, times=5, pause=50, factor=10))
    assert pauses == [50, 60, 60, 60]


def test_wrong_arguments_are_named() -> None:
    install()
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (7, {}, "function"),
        (Failing(), {"times": 0}, "times"),
        (Failing(), {"pause": "x"}, "pause"),
        (Failing(KeyError()), {"on": 3}, "on"),
    ]
    for function, options, name in wrong:
        with pytest.raises((TypeError, ValueError), match=name):
            run(retry(function, **options))


def test_requests() -> None:
    host = install()
    host.web.pages["http://a/"] = (None, {}, b"no route")

    async def ask() -> Any:
        return await retry(lambda: http_get("http://a/"), times=2, pause=0)

    with pytest.raises(RequestFailed, match="no route"):
        run(ask())
    assert len(host.web.asked) == 2


def test_a_pause_that_grows_and_grows_is_a_minute(pauses: list[float]) -> None:
    install()
    assert run(retry(Failing(*[RequestFailed("no")] * 1200), times=2000)) == "done"
    assert len(pauses) == 1200
    assert pauses[-1] == 60
