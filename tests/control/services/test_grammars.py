"""Grammars of a host: compiled once for all who come, and what a matcher has to do behind a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pie_control.calls.fused.matching import USUALLY_PAYS, WHERE_IT_PAYS
from pie_control.errors import InvalidArgument
from pie_control.services import grammars
from pie_control.services.grammars import Advanced, GrammarMatcher, Grammars
from pie_control.testing.fake_model import FakeModel
from pie_inference.grammars import engine
from tests.helpers.grammars import deep
from tests.helpers.guard import HANG_SECONDS

LONG = "x" * USUALLY_PAYS


@pytest.fixture(scope="module")
def of_model() -> Grammars:
    return Grammars(FakeModel("toy").describe()[0])


def compiled(of_model: Grammars, pattern: str) -> grammars.Grammar:
    found: grammars.Grammar = deep(lambda: of_model.compile("regex", pattern, ""))
    return found


class Slow:
    """Stands in for the engine's Grammar: counts, and is done when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources: list[str] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self._compile: Callable[..., engine.Grammar] = engine.Grammar
        monkeypatch.setattr(engine, "Grammar", self.compile)

    def compile(self, vocabulary: Any, source: str) -> engine.Grammar:
        self.sources.append(source)
        self.begun.release()
        assert self.go_on.wait(HANG_SECONDS)
        return self._compile(vocabulary, source)


def test_those_who_come_at_once_with_one_text_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of_model, slow = Grammars(FakeModel("toy").describe()[0]), Slow(monkeypatch)
    with ThreadPoolExecutor(6) as threads:
        same = [threads.submit(of_model.compile, "regex", "[a-c]+", "") for _ in range(4)]
        other = threads.submit(of_model.compile, "regex", "[d-f]+", "")
        assert slow.begun.acquire(timeout=HANG_SECONDS)
        assert slow.begun.acquire(timeout=HANG_SECONDS)  # the other text does not wait
        slow.go_on.set()
        found = {id(one.result(HANG_SECONDS)) for one in same}
        assert len(found) == 1
        assert id(other.result(HANG_SECONDS)) not in found
    assert len(slow.sources) == 2
    assert not of_model._compiling


def test_one_that_is_wrong_is_told_to_all_and_leaves_nothing() -> None:
    of_model = Grammars(FakeModel("toy").describe()[0])
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="unclosed group"):
            of_model.compile("regex", "(a", "")
    assert not of_model._compiling


@pytest.mark.parametrize(
    ("pattern", "advances"), [("[a-z]+", False), (LONG + "[a-z]", True), (LONG[1:] + "[a-z]", False)]
)
def test_a_grammar_says_whether_there_is_something_to_do_before_a_run(
    of_model: Grammars, pattern: str, advances: bool
) -> None:
    assert compiled(of_model, pattern).advances == advances


def test_what_is_forced_is_accepted_where_it_pays(of_model: Grammars) -> None:
    def matcher() -> GrammarMatcher:
        return GrammarMatcher(compiled(of_model, f"ab{LONG}[cd]y"))

    assert matcher().advance([], WHERE_IT_PAYS, 100) == Advanced(0, list(f"ab{LONG}".encode()), False)
    assert matcher().advance([*b"ab"], WHERE_IT_PAYS, 3) == Advanced(2, [*b"xxx"], False)
    assert matcher().advance([*b"abx"], WHERE_IT_PAYS, 100) == Advanced(3, [], False)  # one too few
    assert matcher().advance([*b"abx"], USUALLY_PAYS - 1, 100) == Advanced(3, [*LONG[1:].encode()], False)
    assert matcher().advance([*b"ab"], 0, 100) == Advanced(2, [], False)
    assert matcher().advance([*b"abc"], WHERE_IT_PAYS, 100) == Advanced(2, [], False)  # not all: nothing behind them
    one = matcher()
    assert one.advance([*f"ab{LONG}c".encode()], 1, 0) == Advanced(3 + len(LONG), [], False)
    assert one.advance([*b"y"], 1, 5) == Advanced(1, [], True)
    assert one.tokens == [*f"ab{LONG}cy".encode()]
