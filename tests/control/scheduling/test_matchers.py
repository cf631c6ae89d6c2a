"""Decode runs that keep to a grammar: their tokens fit it, whatever happens around them, and nothing of them stays."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.calls.fused.matching import Matcher
from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.errors import Busy, WorkerError
from pie_control.scheduling import Adaptive, DispatchPolicy, Eager
from pie_inference.grammars.sources import source_of
from pie_inference.protocol import Failure, Sample, WaveDone
from pie_inference.testing import byte_tokenizer
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.scheduling import Inferlet, World, by_kind, greedy

DATE = "[0-9]{2}/[0-9]{2}/[0-9]{4}"
WORDS = "([a-f]{1,4} ){1,5}end"
END = byte_tokenizer.END


class Given(Matcher):
    def __init__(self, pattern: str, tokens: bytes = b"", kind: str = "regex") -> None:
        self.source, self.tokens, self.vocabulary_size = (
            source_of(kind, pattern),
            list(tokens),
            byte_tokenizer.VOCAB_SIZE,
        )


def begin(world: World, prompt: int, pages: int = 8) -> Inferlet:
    """An inferlet with an output."""
    inferlet = world.open(pages, 8)
    inferlet.embed(0, 3, tokens=[prompt, 2, 3])
    inferlet.forward(0, 3, output=4)
    return inferlet


def decode(
    inferlet: Inferlet, matcher: Matcher | None, steps: int, sampler: Sampler | None = None, skip: int = 0
) -> int:
    places = inferlet.embeds + 4, sampler or greedy()
    others = inferlet.embeds + 1, 3, [inferlet.pages, 8], [inferlet.pages, 8], steps, [END], ""
    return int(inferlet.call("decode", 1, *places, *others, matcher, skip))


def tokens_of(world: World, inferlet: Inferlet, matcher: Matcher, steps: int, **changed: Any) -> list[int]:
    """Of a run, which is issued until the worker has its grammar; the output is made anew each time."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        future = decode(inferlet, matcher, steps, **changed)
        world.drain()
        answer = inferlet.answers[future]
        if not isinstance(answer, Busy):
            assert not isinstance(answer, WorkerError), answer
            return list(answer)  # type: ignore[arg-type]
        assert time.monotonic() < deadline
        time.sleep(0.002)
        inferlet.embed(0, 1, at=5, tokens=[7])
        inferlet.call("forward", 1, [], [inferlet.embeds + 5, 1], [], [inferlet.embeds + 4, 1])


def world_of(policy: DispatchPolicy | None = None, **sizes: int) -> World:
    given = {"page_size": 4, "num_pages": 500, "num_embeds": 500, "max_context": 400, **sizes}
    world = World(policy, None, None, None, **given)
    world.may_fail = True  # a grammar that is not compiled yet
    return world


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from([Adaptive(), Adaptive(max_in_flight=1), Eager(), Adaptive(max_in_flight=3, surplus=0)]),
    rows=st.sampled_from([1, 3, 64]),
)
def test_runs_side_by_side_give_what_each_gives_alone(seed: int, policy: DispatchPolicy, rows: int) -> None:
    choice = random.Random(seed)
    patterns = [DATE, WORDS, "(yes|no), I (do|do not)", "[a-z]{3,20}"]
    plans = [(number, choice.choice(patterns), choice.choice([0.0, 0.9]), choice.randint(1, 24)) for number in range(4)]

    def play(world: World, some: list[Any]) -> list[Any]:
        inferlets = [begin(world, number + 10) for number, *_ in some]
        for _, pattern, _, _ in some:  # so that no grammar is new
            other = begin(world, 1)
            tokens_of(world, other, Given(pattern), 1)
            world.close(other)
        futures = [
            decode(inferlet, Given(pattern), steps, Sampler(SamplingParams(temperature=heat), number))
            for inferlet, (number, pattern, heat, steps) in zip(inferlets, some, strict=True)
        ]
        plain = [decode(begin(world, 99 + number), None, 9) for number in range(choice.randint(0, 2))]
        world.drain()
        assert plain is not None
        return [inferlet.answers[future] for inferlet, future in zip(inferlets, futures, strict=True)]

    together = play(world_of(policy, max_batch_rows=rows), plans)
    alone = [play(world_of(), [plan])[0] for plan in plans]
    assert together == alone
    for (_, pattern, _, steps), tokens in zip(plans, together, strict=True):
        text = bytes(token for token in tokens if token != END).decode()
        if len(tokens) < steps:
            assert re.fullmatch(pattern, text), text


def test_a_run_is_over_where_nothing_can_follow_and_behind_many_forced_tokens() -> None:
    world = world_of()
    assert len(tokens_of(world, begin(world, 5), Given(DATE), 20)) == 10
    pattern = "[xy]this is what it says[01]"
    assert len(tokens_of(world, begin(world, 5), Given(pattern), 28, skip=20)) == 1
    assert len(tokens_of(world, begin(world, 5), Given(pattern), 28, skip=21)) == 22
    started = tokens_of(world, begin(world, 5), Given(pattern, b"xthis is what it say"), 20, skip=20)
    assert re.fullmatch(rb"s[01]", bytes(started))


def test_the_worker_forgets_runs_that_are_over() -> None:
    world = world_of()
    constraints = vars(world.model)["_constraints"]
    tokens_of(world, begin(world, 5), Given(DATE), 3)
    cancelled = begin(world, 6)
    future = decode(cancelled, Given(DATE), 20)
    for _ in range(3):
        world.turn()
        world.answer()
    assert cancelled.cancel(future)
    world.close(begin(world, 8))
    world.drain()
    assert len(constraints) == 1
    decode(begin(world, 9), None, 2)
    world.drain()
    assert len(constraints) == 0


def test_a_grammar_at_fault_fails_its_own_run_and_keeps_its_inferlet() -> None:
    world = world_of()
    tokens_of(world, begin(world, 5), Given(DATE), 1)
    good, bad = begin(world, 6), begin(world, 7)
    plain = begin(world, 8)
    futures = decode(good, Given(DATE), 10), decode(bad, Given(DATE, b"x"), 10), decode(plain, None, 4)
    world.drain()
    assert len(good.tokens[futures[0]]) == 10
    failed = bad.answers[futures[1]]
    assert isinstance(failed, WorkerError)
    assert "sample: the tokens before the run do not fit the grammar" in str(failed)
    assert len(plain.tokens[futures[2]]) == 4
    assert bad.ending is None


def test_an_answer_that_tells_of_too_few_rows_is_refused() -> None:
    world = world_of()
    tokens_of(world, begin(world, 5), Given(DATE), 1)
    decode(begin(world, 6), Given(DATE), 4)
    world.turn()
    assert by_kind(world.sent[0])[Sample].matchers.tolist() != [0]
    done = world.run()
    result: Any = done.results[-1]
    wrong = (*done.results[:-1], msgspec.structs.replace(result, over=np.zeros(5, np.bool_)))
    with pytest.raises(WorkerError, match="are versions mixed"):
        world.turn(WaveDone(done.wave, wrong, 0.0))


def test_a_busy_failure_is_told_as_such() -> None:
    world = world_of()
    inferlet = begin(world, 6)
    future = decode(inferlet, Given(DATE), 4)
    world.turn()
    done = world.run()
    failed = Failure(len(done.results) - 1, 0, "sample: not yet", busy=True)
    world.turn(WaveDone(done.wave, done.results, 0.0, (failed,)))
    assert isinstance(inferlet.answers[future], Busy)
    assert inferlet.answers[future].code == "busy"  # type: ignore[union-attr]
