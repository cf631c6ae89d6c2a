"""What grammars say to rows that sample: the same as the engine step by step, whatever becomes of the batches."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_inference.grammars import library as library_module
from pie_inference.grammars import rows as rows_module
from pie_inference.grammars import runs as runs_module
from pie_inference.grammars.engine import Matcher
from pie_inference.grammars.rows import Constraints, MatcherStep
from pie_inference.grammars.sources import GrammarError, source_of
from pie_inference.protocol import GrammarStart, Sample
from pie_inference.testing import byte_tokenizer
from testing.worker_batches import indptr, ints, sample_batch
from tests.helpers.grammars import bits
from tests.helpers.guard import HANG_SECONDS

WORDS = source_of("regex", "([a-d]{1,3} ){2,4}end")
DATE = source_of("regex", "[0-9]{2}/[0-9]{2}")
LONG = source_of("lark", 'start: ("yes" | "no") ", that is what they said" /[.!]/')
COUNT = source_of("lark", "start: /[ab]/~1..2000")


def make() -> Constraints:
    return Constraints(byte_tokenizer.tokenizer_json(), byte_tokenizer.VOCAB_SIZE, (byte_tokenizer.END,))


def row(number: int, count: int, source: str = "", accepted: Sequence[int] = (), skip: int = 0) -> Any:
    """A row with a matcher: its number, how many tokens there are before it, and what its first step brings."""
    start = msgspec.msgpack.encode(GrammarStart(source, list(accepted), skip)) if source else b""
    return number, count, start


def batch(*rows: Any, ended: Sequence[int] = (), **changes: Any) -> Sample:
    starts = [start for _, _, start in rows]
    return sample_batch(
        ints(range(len(rows))),
        matchers=np.array([number for number, _, _ in rows], np.int64),
        matched=ints([count for _, count, _ in rows]),
        start_indptr=indptr([len(start) for start in starts]),
        starts=np.frombuffer(b"".join(starts), np.uint8),
        ended=np.array(ended, np.int64),
        **changes,
    )


def begin(constraints: Constraints, *rows: Any, **changes: Any) -> MatcherStep:
    """A step as soon as no row is busy."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        step = constraints.step(batch(*rows, **changes))
        if not any(fault.busy for fault in step.faults.values()):
            return step
        assert time.monotonic() < deadline
        time.sleep(0.002)


def allowed(step: MatcherStep, place: int) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(step.allowed[place], bitorder="little")).tolist()
    return found


def reference(source: str, tokens: Sequence[int]) -> list[int]:
    matcher = _of_source(source).matcher()
    assert matcher.accept(tokens) == len(tokens)
    return bits(matcher)


@functools.cache
def _of_source(source: str) -> Any:
    from pie_inference.grammars.engine import Grammar
    from tests.helpers.grammars import deep, vocabulary

    return deep(lambda: Grammar(vocabulary(), source))


def test_a_grammar_that_is_not_compiled_keeps_nobody_waiting() -> None:
    constraints = make()
    step = constraints.step(batch(row(1, 0, WORDS), row(0, 0)))
    assert list(step.faults) == [0]
    assert step.faults[0].busy
    assert "issue the run again" in step.faults[0].message
    assert begin(constraints, row(2, 0, WORDS)).faults == {}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_masks_are_those_of_the_engine_step_by_step(seed: int) -> None:
    """Three runs side by side; steps are run twice, as after a failure of a neighbour, or a step behind is launched
    before the token of the one before was read."""
    choose, constraints = random.Random(seed), make()
    sources = {1: WORDS, 2: DATE, 3: LONG}
    made: dict[int, list[int]] = {number: [] for number in sources}
    live = dict(sources)
    first = True
    while live:
        numbers = list(live)
        rows = [row(number, len(made[number]), live[number] if first else "") for number in numbers]
        step = begin(constraints, *rows)
        if choose.random() < 0.3:
            step = constraints.step(batch(*rows))
        first = False
        assert not step.faults
        tokens = {}
        for place, at in enumerate(step.rows.tolist()):
            number = numbers[at]
            assert allowed(step, place) == reference(live[number], made[number])
            tokens[at] = choose.choice(allowed(step, place))
        step.sampled(lambda tokens=tokens: tokens)  # type: ignore[misc]
        over = step.over(len(numbers))
        for at, number in enumerate(numbers):
            made[number].append(tokens[at])
            matcher = _of_source(live[number]).matcher()
            matcher.accept(made[number])
            assert over[at] == matcher.is_over
            if over[at]:
                del live[number]
    assert constraints.step(batch(row(0, 0), ended=list(sources))).faults == {}
    assert len(constraints) == 0


def test_a_second_step_waits_for_the_token_of_the_first_and_not_for_its_answer() -> None:
    constraints = make()
    asked = []
    first = begin(constraints, row(1, 0, DATE))
    first.sampled(lambda: asked.append(0) or [ord("4")])  # type: ignore[func-returns-value]
    assert asked == []
    second = constraints.step(batch(row(1, 1)))
    assert asked == [0]
    assert allowed(second, 0) == reference(DATE, [ord("4")])
    second.sampled(lambda: [ord("2")])
    assert not first.over(1)[0]
    assert not second.over(1)[0]
    assert allowed(constraints.step(batch(row(1, 2))), 0) == [ord("/")]


def test_a_run_is_over_where_enough_is_forced() -> None:
    constraints = make()
    for number, skip, over in ((1, 0, False), (2, 24, True), (3, 25, False)):
        step = begin(constraints, row(number, 0, LONG, (), skip))
        for count, token in enumerate(b"no"):
            step = step if not count else constraints.step(batch(row(number, count)))
            step.sampled(lambda token=token: [token])  # type: ignore[misc]
            at_end = step.over(1)[0]
        assert at_end == over, skip


def test_a_matcher_that_fails_fails_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = make()
    step = begin(constraints, row(1, 0, DATE), row(2, 0, WORDS))
    step.sampled(lambda: b"1a")
    bad, write = vars(constraints)["_runs"][1].matcher, Matcher.write_mask

    def fail(matcher: Matcher, address: int, before: float) -> float:
        if matcher is bad:
            raise GrammarError("too slow")
        return write(matcher, address, before)

    monkeypatch.setattr(Matcher, "write_mask", fail)
    assert not step.over(2).any()
    step = constraints.step(batch(row(1, 1), row(2, 1)))
    assert {place: fault.message for place, fault in step.faults.items()} == {0: "too slow"}
    assert allowed(step, 0) == reference(WORDS, b"a")


def test_a_run_goes_on_where_the_tokens_before_it_stand() -> None:
    constraints = make()
    step = begin(constraints, row(1, 0, LONG, b"yes, that"))
    assert allowed(step, 0) == [ord(" ")]
    step.sampled(lambda: [ord(" ")])
    step.over(1)
    constraints.step(batch(row(0, 0), ended=[1]))
    kept = vars(constraints)["_kept"]
    assert [bytes(one.tokens) for one in kept] == [b"yes, that "]
    for number, accepted in ((2, b"yes, that is"), (3, b"yes, t")):  # behind it, and before it
        step = begin(constraints, row(number, 0, LONG, accepted))
        assert allowed(step, 0) == reference(LONG, accepted)
        constraints.step(batch(row(0, 0), ended=[number]))
    assert len(kept) == 1
    assert allowed(begin(constraints, row(4, 0, LONG, b"no")), 0) == [ord(",")]


def test_very_many_tokens_before_a_run_are_accepted_beside_the_wave() -> None:
    constraints = make()
    begin(constraints, row(1, 0, COUNT))
    many = [ord("a")] * (rows_module.MOST_REPLAYED + 1)
    assert constraints.step(batch(row(2, 0, COUNT, many))).faults[0].busy
    step = begin(constraints, row(3, 0, COUNT, many))
    assert set(b"ab") <= set(allowed(step, 0))
    wrong = [*many, ord("x")]
    step = begin(constraints, row(4, 0, COUNT, wrong))
    assert "do not fit the grammar" in step.faults[0].message


@pytest.mark.parametrize("module", [library_module, runs_module])
def test_a_thread_that_cannot_start_is_tried_again(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    constraints, accepted = make(), [*b"ab" * (rows_module.MOST_REPLAYED + 10)]
    if module is runs_module:
        begin(constraints, row(1, 0, COUNT))  # it is compiled
    with monkeypatch.context() as failing:
        failing.setattr(module, "start_deep", Mock(side_effect=RuntimeError("no thread")))
        for number in range(2, 12):  # more than may be under way
            with pytest.raises(RuntimeError, match="no thread"):
                constraints.step(batch(row(number, 0, COUNT, accepted[:-number])))
    assert not begin(constraints, row(20, 0, COUNT, accepted[:-2])).faults


def test_what_is_wrong_fails_its_own_row() -> None:
    constraints = make()
    begin(constraints, row(1, 0, DATE))
    none = np.zeros((1, -(-byte_tokenizer.VOCAB_SIZE // 8)), np.uint8)
    none[0, ord("x") >> 3] |= 1 << (ord("x") & 7)
    step = begin(
        constraints,
        row(2, 0, DATE, b"x"),
        row(3, 1),
        row(4, 0, source_of("regex", "(")),
        row(5, 0, DATE),
        row(6, 0, DATE),
        allowed_rows=ints([-1, -1, -1, 0, -1]),
        allowed=none,
    )
    messages = {place: fault.message for place, fault in step.faults.items()}
    assert messages.keys() == {0, 1, 2, 3}
    for place, message in enumerate(("do not fit", "no matcher 3", "unclosed group", "no token may come here")):
        assert message in messages[place]
    assert step.rows.tolist() == [4]
    assert allowed(step, 0) == list(b"0123456789")


def test_a_lost_token_is_noticed() -> None:
    constraints = make()
    begin(constraints, row(1, 0, DATE))
    assert "has lost a token" in constraints.step(batch(row(1, 1))).faults[0].message


def test_a_batch_without_what_a_matcher_begins_with_is_refused() -> None:
    constraints = make()
    broken = msgspec.structs.replace(batch(row(1, 0, DATE)), starts=None, start_indptr=None)
    with pytest.raises(ValueError, match="begins without a grammar"):
        constraints.step(broken)
    with pytest.raises(ValueError, match="no matchers"):
        constraints.step(sample_batch(ints([1])))


def test_a_grammar_that_takes_too_long_ends_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = make()
    step = begin(constraints, row(1, 0, DATE))
    step.sampled(lambda: [ord("1")])
    monkeypatch.setattr(runs_module, "SECONDS_PER_TOKEN", -1e9)
    step = constraints.step(batch(row(1, 1)))
    assert "s for 1 tokens: simplify it" in step.faults[0].message
    assert not step.faults[0].busy


def test_runs_and_what_they_leave_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MOST_MATCHERS", 3)
    monkeypatch.setattr(rows_module, "MOST_KEPT", 2)
    constraints = make()
    begin(constraints, row(1, 0, DATE))
    step = begin(constraints, *(row(number, 0, DATE) for number in (2, 3, 4)))
    assert "3 runs with a matcher are under way" in step.faults[2].message
    constraints.step(batch(row(0, 0), ended=[1, 2, 3, 4]))
    assert (len(constraints), len(vars(constraints)["_kept"])) == (0, 2)


def test_a_number_that_comes_again_with_a_beginning_is_another_run() -> None:
    """The control layer was started again, and has never told that its runs are over."""
    constraints = make()
    yes, other = source_of("regex", "yes"), source_of("regex", "no")
    begin(constraints, row(7, 0, yes))
    again = begin(constraints, row(7, 0, yes))
    assert allowed(again, 0) == [ord("y")]
    assert allowed(begin(constraints, row(7, 0, other)), 0) == [ord("n")]
    assert len(constraints) == 1


def test_a_grammar_whose_thread_ends_by_any_error_fails_and_is_not_awaited_for_ever() -> None:
    def broken() -> Any:
        raise TypeError("eos_token: a list cannot be an integer")

    library, deadline = library_module.GrammarLibrary(broken), time.monotonic() + HANG_SECONDS

    def wait() -> None:
        while library.try_get(WORDS) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    with pytest.raises(GrammarError, match=r"could not be compiled: TypeError.*eos_token"):
        wait()
