"""What the worker answers: values, commands that failed, and answers that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pie_control.calls.values import Done, Token
from pie_control.errors import WorkerError
from pie_control.scheduling import Adaptive, Reason, WorkerLost
from pie_inference.protocol import (
    CopyKvpage,
    EmbedTxt,
    Failure,
    Forward,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    RunWave,
    Sample,
    SampleResult,
    Verify,
    VerifyResult,
    WaveDone,
)
from tests.helpers.scheduling import Inferlet, World, greedy, name_token

MESSAGE = "out of memory"
Place = tuple[type, int]
"""A kind of batch, and a command in it."""


def start(inferlets: int = 1, **options: Any) -> tuple[World, list[Inferlet]]:
    """Inferlets with a page, and embed 0 filled."""
    world = World(Adaptive(surplus=0), **options)
    opened = [world.open(1, 4) for _ in range(inferlets)]
    for one in opened:
        one.embed(0)
    world.drain()
    return world, opened


def fail(world: World, *places: Place) -> WaveDone:
    """The answer to the oldest wave, in which some commands failed."""
    wave = world.sent[0]
    kinds = [type(batch) for batch in wave.batches]
    done = world.run()
    failures = tuple(Failure(kinds.index(kind), command, MESSAGE) for kind, command in places)
    return WaveDone(done.wave, done.results, 0.0, failures)


# ---- failures are per command ----


@pytest.mark.parametrize("kind", [EmbedTxt, Forward])
def test_a_failed_command_ends_the_inferlet_that_relies_on_it_and_no_other(kind: type) -> None:
    world, inferlets = start(3)
    futures = []
    for one in inferlets:
        one.embed(0)
        one.forward(output=1)
        futures.append(one.sample(1))
    world.turn()
    turn = world.turn(fail(world, (kind, 1)))
    (ending,) = turn.endings
    assert (ending.owner, ending.reason) == (2, Reason.FAILED)
    assert str(ending.error) == f"the worker could not run the command: {MESSAGE}"
    assert isinstance(inferlets[1].answers[futures[1]], WorkerError)
    assert isinstance(inferlets[0].answers[futures[0]], Token)
    assert isinstance(inferlets[2].answers[futures[2]], Token)
    with pytest.raises(WorkerError, match=MESSAGE):
        inferlets[1].create_queue()
    statistics = world.scheduler.statistics()
    assert (statistics.pages.used, statistics.inferlets, statistics.evictions) == (2, 2, 0)


def test_a_failed_copy_ends_its_inferlet() -> None:
    world, (one,) = start()
    one.forward()
    one.call("alloc", 1, "kvpage", 1)
    one.call("copy_kvpage", 1, [0, 1], [4, 1])
    world.turn()
    world.turn(world.run())
    assert [ending.owner for ending in world.turn(fail(world, (CopyKvpage, 0))).endings] == [1]


def test_a_failed_part_of_a_forward_ends_its_inferlet_once() -> None:
    world = World(Adaptive(surplus=0), max_batch_tokens=20)
    one = world.open(12, 48)
    one.embed(0, 48)
    one.forward(0, 48)
    one.call("synchronize", 1)
    world.turn()
    assert len(world.sent) == 2
    turn = world.turn(fail(world, (Forward, 0)))
    assert [ending.owner for ending in turn.endings] == [1]
    assert isinstance(one.answers[1], WorkerError)
    assert not turn.waves, "the rest of it does not run"
    turn = world.turn(fail(world, (Forward, 0)))
    assert not turn.endings
    assert not turn.completions


@pytest.mark.parametrize(
    ("kind", "call", "arguments"),
    [
        (GetNextDist, "get_next_dist", (0, 3, 1.0)),
        (GetLogprobs, "get_logprobs", (0, [1, 2])),
        (Sample, "sample", (0, greedy())),
        (Verify, "verify", ([0, 1], [], greedy())),
    ],
)
def test_a_failed_output_answers_its_future_and_ends_nobody(kind: type, call: str, arguments: tuple[Any, ...]) -> None:
    world, inferlets = start(2)
    futures = [(one.call(call, 1, *arguments), one.call(call, 1, *arguments)) for one in inferlets]
    world.turn()
    turn = world.turn(fail(world, (kind, 1)))
    assert not turn.endings
    (first, second), others = futures
    assert not isinstance(inferlets[0].answers[first], WorkerError)
    assert isinstance(inferlets[0].answers[second], WorkerError)
    assert MESSAGE in str(inferlets[0].answers[second])
    assert not any(isinstance(inferlets[1].answers[future], WorkerError) for future in others)
    inferlets[0].sample(0)
    assert len(world.drain()) == 1


def test_a_failed_sample_that_nobody_named_cannot_be_named_later() -> None:
    world, (one,) = start()
    future = one.sample(0)
    world.turn()
    assert not world.turn(fail(world, (Sample, 0))).endings
    with pytest.raises(WorkerError, match=MESSAGE):
        one.call("embed_txt", 1, [name_token(future)], [1], [1, 1])
    one.sample(0)


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize(
    ("call", "arguments"),
    [("embed_txt", ([name_token(1)], [1], [1, 1])), ("sample", (0, greedy(), [name_token(1)], ""))],
)
def test_a_failed_sample_that_a_later_command_names_ends_its_inferlet(
    call: str, arguments: tuple[Any, ...], in_flight: bool
) -> None:
    world, inferlets = start(2)
    for one in inferlets:
        assert one.sample(0) == 1
    if not in_flight:
        world.turn()
    inferlets[0].call(call, 1, *arguments)
    world.turn(quiet=in_flight)
    assert len(world.sent) == 1 + in_flight
    turn = world.turn(fail(world, (Sample, 0), (Sample, 1)))
    assert [ending.owner for ending in turn.endings] == [1]
    assert all(isinstance(one.answers[1], WorkerError) for one in inferlets)
    assert inferlets[1].ending is None
    world.drain()
    assert inferlets[0].accepted == set(inferlets[0].answers)


def test_who_names_a_failed_sample_before_it_hears_of_it_is_ended() -> None:
    world, (one,) = start()
    future = one.sample(0)
    world.turn()
    world.lateness = lambda: 1
    world.turn(fail(world, (Sample, 0)))
    assert not one.answers
    one.call("embed_txt", 1, [name_token(future)], [1], [1, 1])
    done = one.call("synchronize", 1)
    turn = world.turn()
    assert [ending.owner for ending in turn.endings] == [1]
    world.tell()
    assert isinstance(one.answers[future], WorkerError)
    assert one.ending is not None
    assert one.answers[done] is one.ending.error, "its end answered it"


def test_a_batch_that_failed_as_a_whole_has_no_result() -> None:
    world, inferlets = start(2)
    for one in inferlets:
        one.sample(0)
    world.turn()
    failures = (Failure(0, 0, "first"), Failure(0, 1, "second"))
    world.turn(WaveDone(world.sent.popleft().wave, (None,), 0.0, failures))
    assert [str(one.answers[1]) for one in inferlets] == [
        "the worker could not run the command: first",
        "the worker could not run the command: second",
    ]
    assert world.scheduler.statistics().token_slots.used == 0


# ---- answers that do not fit ----


def misfits(wave: RunWave, results: tuple[Any, ...]) -> list[tuple[str, WaveDone]]:
    """Answers to a wave of two samples, one of logprobs of two tokens and a verify."""
    logprobs, sample, verify = results
    number = wave.wave

    def one_failed(batch: int, command: int) -> WaveDone:
        return WaveDone(number, results, 0.0, (Failure(batch, command, MESSAGE),))

    return [
        ("which is not the oldest in flight", WaveDone(number + 1, results, 0.0)),
        ("or in part", WaveDone(number, results[:2], 0.0)),
        ("or in part", WaveDone(number, (*results, None), 0.0)),
        ("SampleResult to sample with 2 commands", WaveDone(number, (logprobs, tokens(3), verify), 0.0)),
        ("NoneType to sample with 2 commands", WaveDone(number, (logprobs, None, verify), 0.0)),
        ("NoneType to sample", WaveDone(number, (logprobs, None, verify), 0.0, (Failure(1, 0, MESSAGE),))),
        ("NoneType to verify", WaveDone(number, (logprobs, sample, None), 0.0)),
        ("SampleResult to verify", WaveDone(number, (logprobs, sample, sample), 0.0)),
        ("VerifyResult to verify", WaveDone(number, (logprobs, sample, VerifyResult(*[np.zeros(2, int)] * 2)), 0.0)),
        ("to get_logprobs", WaveDone(number, (GetLogprobsResult(np.zeros(3, np.float32)), sample, verify), 0.0)),
        ("failed command 2 that is not in the wave", one_failed(1, 2)),
        ("failed command -1", one_failed(1, -1)),
        ("failed command 0", one_failed(3, 0)),
        ("failed command 0", one_failed(-1, 0)),
    ]


def tokens(count: int) -> SampleResult:
    return SampleResult(np.zeros(count, np.int32))


@pytest.mark.parametrize("number", range(14))
def test_an_answer_that_does_not_fit_is_refused_and_changes_nothing(number: int) -> None:
    world, (one,) = start()
    one.sample(0)
    one.call("verify", 1, [0, 1], [], greedy())
    one.sample(0)
    one.call("get_logprobs", 1, 0, [4, 5])
    world.turn()
    wave = world.sent[0]
    right = world.model.run(wave)
    message, wrong = misfits(wave, right.results)[number]
    before = world.scheduler.statistics()
    with pytest.raises(WorkerError, match=f"the worker .*{message}"):
        world.turn(wrong)
    assert world.scheduler.statistics() == before
    assert not one.answers
    world.turn(right)
    assert set(one.answers) == one.accepted


def test_an_answer_to_nothing_is_refused() -> None:
    world, _ = start()
    with pytest.raises(WorkerError, match="the worker answered wave 5, and none is in flight"):
        world.turn(WaveDone(5, (), 0.0))


def test_a_result_for_a_call_that_has_none_is_refused() -> None:
    world, (one,) = start()
    one.embed(0)
    world.turn()
    with pytest.raises(WorkerError, match="SampleResult to embed_txt with 1 commands: are versions mixed"):
        world.turn(WaveDone(world.sent[0].wave, (tokens(1),), 0.0))


def test_a_worker_that_is_lost_after_a_wrong_answer_leaves_no_future_open() -> None:
    world, (one,) = start()
    one.sample(0)
    one.call("get_logprobs", 1, 0, [4, 5])
    world.turn()
    with pytest.raises(WorkerError):
        world.turn(WaveDone(world.sent[0].wave, (None,), 0.0))
    world.turn(WorkerLost("it speaks another protocol"))
    assert set(one.answers) == {1, 2}


def test_what_was_answered_before_a_wrong_answer_is_told_with_the_next_turn() -> None:
    world, (one,) = start()
    future = one.sample(0)
    world.turn()
    done = one.call("synchronize", 1)
    world.turn()
    right = world.run()
    with pytest.raises(WorkerError, match="none is in flight"):
        world.turn(right, WaveDone(7, (), 0.0))
    world.turn()
    assert isinstance(one.answers[future], Token)
    assert one.answers[done] == Done()
