"""forward_with_scores: what is refused, its batch beside that of forwards, and what each call is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pie_control.calls.introspective_forward import forward_with_scores
from pie_control.calls.introspective_forward.forward_with_scores import AttentionScores
from pie_control.errors import InvalidArgument, InvalidState, NotFound, WorkerError
from pie_inference.protocol import EmbedTxt, Forward, ForwardWithScores, ForwardWithScoresResult, RunWave
from tests.helpers.refusals import NO_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import Inferlet, World

from .test_forward_with_adapter import ADAPTERS, named, world_with_adapters

NAME = "forward_with_scores"
REFUSED = [
    refusal(NotFound, NO_QUEUE, NAME, 9, [0, 1], [3, 1], [0, 1], []),
    refusal(InvalidArgument, "a forward needs at least one input embed", NAME, Q, [0, 1], [], [0, 2], []),
    refusal(InvalidState, "embed 4 was never filled", NAME, Q, [0, 1], [3, 2], [0, 2], []),
    refusal(NotFound, "KV page 4 is not allocated", NAME, Q, [3, 2], [3, 1], [0, 1], []),
    refusal(InvalidState, "2 tokens need 2 free slots", NAME, Q, [0, 1], [0, 2], [0, 1], []),
    refusal(InvalidArgument, "2 output embeds for 1 inputs", NAME, Q, [0, 1], [3, 1], [0, 1], [4, 2]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    inferlet, _ = prepare()
    embeds, pages = inferlet.call("alloc", Q, "emb", 17), inferlet.call("alloc", Q, "kvpage", 5)
    inferlet.call("embed_txt", Q, [1] * 17, list(range(3, 20)), [embeds, 17])
    with pytest.raises(InvalidArgument, match="17 inputs are more than the 16 whose scores can be told at a time"):
        inferlet.call(NAME, Q, [0, 1], [embeds, 17], [pages, 5], [])
    monkeypatch.setattr(forward_with_scores, "MOST_PAIRS", 100)
    with pytest.raises(InvalidArgument, match="9 inputs and 3 context tokens are 108 pairs, more than 100"):
        inferlet.call(NAME, Q, [0, 1], [embeds, 9], [pages, 5], [])
    inferlet.call(NAME, Q, [0, 1], [embeds, 8], [pages, 5], [])


def scored(inferlet: Inferlet, at: int, count: int) -> int:
    """Runs embeds `at` .. at their positions; its future."""
    inferlet.embed(at, count, at)
    pages = [inferlet.pages, inferlet.num_pages]
    future: int = inferlet.call(NAME, Q, pages, [inferlet.embeds + at, count], pages, [inferlet.embeds + 63, 1])
    return future


def scores_of(inferlet: Inferlet, future: int) -> list[float]:
    answer = inferlet.answers[future]
    assert isinstance(answer, AttentionScores)
    scores: list[float] = answer.scores.tolist()
    return scores


def kinds(wave: RunWave) -> list[type]:
    return [type(batch) for batch in wave.batches]


def test_scores_are_of_the_context_then_of_the_inputs() -> None:
    """The fake model gives the same to all keys that a query sees."""
    world = World()
    inferlet = world.open(8, 64)
    first, second = scored(inferlet, 0, 2), scored(inferlet, 2, 1)
    world.drain()
    assert scores_of(inferlet, first) == pytest.approx([1.5, 0.5])
    assert scores_of(inferlet, second) == pytest.approx([1 / 3] * 3)


def test_a_wave_has_them_behind_forwards_and_before_outputs() -> None:
    world = World()
    inferlet = world.open(8, 64)
    inferlet.embed(0, 3)
    inferlet.forward(0, 3)
    scored(inferlet, 3, 2)
    inferlet.sample(63)
    inferlet.embed(5, 1, 5)
    inferlet.forward(5, 1)  # sees what the one with scores wrote, so it goes with the next wave
    first, second = world.drain()
    assert kinds(first)[:3] == [EmbedTxt, Forward, ForwardWithScores]
    assert len(first.batches) == 4
    assert kinds(second)[-1] is Forward


def test_several_go_in_one_batch_and_each_gets_its_own() -> None:
    world = World()
    inferlets = [world.open(8, 64) for _ in range(3)]
    futures = [scored(one, 0, count) for one, count in zip(inferlets, (1, 2, 4), strict=True)]
    (wave,) = world.drain()
    assert [len(batch.q_indptr) for batch in wave.batches if isinstance(batch, ForwardWithScores)] == [4]
    told = [scores_of(one, future) for one, future in zip(inferlets, futures, strict=True)]
    assert [len(scores) for scores in told] == [1, 2, 4]


def test_hidden_tokens_have_no_score() -> None:
    world = World()
    inferlet = world.open(8, 64)
    inferlet.embed(0, 4)
    inferlet.forward(0, 4)
    inferlet.call("mask_kvpage", Q, [inferlet.pages, 1], [1, 2])
    future = scored(inferlet, 4, 1)
    world.drain()
    assert scores_of(inferlet, future) == pytest.approx([1 / 3] * 3)


def test_an_answer_that_does_not_fit_is_told() -> None:
    world = World()
    inferlet = world.open(8, 64)
    scored(inferlet, 0, 2)
    world.turn()
    _, batch = world.sent[0].batches
    assert isinstance(batch, ForwardWithScores)
    wave = next(iter(vars(world.scheduler)["_in_flight"]))
    wrong = ForwardWithScoresResult(np.array([0, 3], np.int32), np.zeros(3, np.float32))
    with pytest.raises(WorkerError, match="are versions mixed"):
        wave.batches[1].values(wrong)


# ---- with an adapter ----

WITH_ADAPTER = "forward_with_adapter_and_scores"


def test_an_unknown_adapter_is_refused_and_changes_nothing() -> None:
    message = "has no adapter 'poet'; it has: none"
    check_refused(Refusal(NotFound, message, WITH_ADAPTER, (Q, "poet", [0, 1], [3, 1], [0, 1], [])))


def test_with_an_adapter_it_is_refused_as_without() -> None:
    inferlet, handed_on = prepare()
    inferlet.space.adapters = {"poet": 5}
    before = len(handed_on)
    with pytest.raises(InvalidArgument, match="a forward needs at least one input embed"):
        inferlet.call(WITH_ADAPTER, Q, "poet", [0, 1], [], [0, 1], [])
    with pytest.raises(NotFound, match="queue 9 does not exist"):
        inferlet.call(WITH_ADAPTER, 9, "poet", [0, 1], [3, 1], [0, 1], [])
    assert len(handed_on) == before


def test_a_batch_has_the_adapter_of_each_sequence(tmp_path: Path) -> None:
    world = world_with_adapters(tmp_path)
    one, other = world.open(4, 64), world.open(4, 64)
    named(one, **ADAPTERS)
    one.embed(0, 3, 0)
    pages = [one.pages, one.num_pages]
    one.call(WITH_ADAPTER, one.queue, "painter", pages, [one.embeds, 3], pages, [])
    scored(other, 0, 2)
    (batch,) = [batch for wave in world.drain() for batch in wave.batches if isinstance(batch, ForwardWithScores)]
    assert batch.adapters is not None
    assert sorted(batch.adapters.tolist()) == [-1, 1]
    lengths = dict(zip(batch.adapters.tolist(), np.diff(batch.q_indptr).tolist(), strict=True))
    assert lengths == {1: 3, -1: 2}
