"""forward_with_dist and forward_with_sampling."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from pie_control.calls.fused.step import DistStep, SampleStep
from pie_control.calls.output_text.get_next_dist import Dists
from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.errors import InvalidArgument, InvalidState, NotFound, QuotaExceeded, WorkerError
from pie_inference.protocol import EmbedTxt, Failure, Forward, GetNextDist, Sample
from tests.helpers.refusals import GREEDY, NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import Inferlet, World, by_kind, greedy, name_token

PLACE = [3], [4, 1], [0, 1], [0, 1], 5
"""Position, input, context, output pages and output embed of a step after `prepare`."""
SAMPLER = Sampler(SamplingParams(temperature=1.0), 5)


def test_a_step_with_sampling_is_one_command() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on)
    inferlet.call("forward_with_sampling", Q, [name_token(1)], *PLACE, GREEDY)
    (step,) = handed_on[before:]
    assert isinstance(step, SampleStep)
    assert (step.tokens, step.references) == ([0], [(0, 1)])
    assert (step.embeds, step.own, step.outputs, step.embed) == (((4, 5),), ((3, 4),), ((5, 6),), 5)
    assert (step.size, list(step.positions), step.params) == (1, [3], GREEDY.params)


def test_a_step_with_a_distribution_is_one_command() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on)
    inferlet.call("forward_with_dist", Q, [65], *PLACE, 7, 0.5)
    (step,) = handed_on[before:]
    assert isinstance(step, DistStep)
    assert (step.tokens, step.embeds, step.own, step.embed) == ([65], ((4, 5),), ((3, 4),), 5)
    assert (step.k, step.temperature) == (7, 0.5)


@pytest.mark.parametrize(
    "wanted",
    [
        refusal(error, message, call, queue, tokens, *place, *outputs)
        for call, outputs in [("forward_with_dist", (7, 0.5)), ("forward_with_sampling", (SAMPLER,))]
        for error, message, queue, tokens, place in [
            (NotFound, NO_QUEUE, 9, [65], PLACE),
            (InvalidArgument, "token 999 is outside of the vocabulary", Q, [999], PLACE),
            (InvalidArgument, "token reference 1 belongs to queue 1", OTHER_QUEUE, [name_token(1)], PLACE),
            (InvalidArgument, "a forward needs at least one input embed", Q, [], ([], [], [0, 1], [0, 1], 5)),
            (InvalidArgument, "2 tokens, 1 positions and 1 embeds", Q, [1, 2], PLACE),
            (NotFound, "page 7 is not allocated", Q, [65], ([3], [4, 1], [7, 1], [0, 1], 5)),
            (InvalidState, "the output pages have 1", Q, [1, 2], ([3, 4], [4, 2], [0, 1], [0, 1], 5)),
            (NotFound, "embed 99 is not allocated", Q, [65], ([3], [4, 1], [0, 1], [0, 1], 99)),
            (InvalidArgument, "embed range (-1, 1)", Q, [65], ([3], [4, 1], [0, 1], [0, 1], -1)),
        ]
    ]
    + [refusal(InvalidArgument, "k is 999", "forward_with_dist", Q, [65], *PLACE, 999, 1.0)],
)
def test_nothing_has_happened_if_a_part_is_refused(wanted: Refusal) -> None:
    check_refused(wanted)


# ---- in waves ----


def world(max_batch_tokens: int = 256) -> tuple[World, Inferlet]:
    """An inferlet with two pages, and 40 embeds from 0 on."""
    made = World(page_size=32, max_batch_tokens=max_batch_tokens)
    return made, made.open(2, 40)


def call_step(inferlet: Inferlet, tokens: list[int], start: int, *, input: int = 0) -> int:
    count = len(tokens)
    future: int = inferlet.call(
        "forward_with_dist", 1, tokens, list(range(start, start + count)), [input, count], [0, 2], [0, 2], 39, 3, 1.0
    )
    return future


def test_a_step_takes_one_wave_with_three_batches() -> None:
    made, inferlet = world()
    call_step(inferlet, [5], 0)
    inferlet.call("forward_with_sampling", 1, [6], [1], [1, 1], [0, 2], [0, 2], 38, greedy())
    first, second = made.drain()
    assert [type(batch) for batch in first.batches] == [EmbedTxt, Forward, GetNextDist]
    assert [type(batch) for batch in second.batches] == [EmbedTxt, Forward, Sample]


def test_steps_of_many_inferlets_share_batches() -> None:
    made = World(page_size=32)
    for inferlet in [made.open(2, 40) for _ in range(5)]:
        call_step(inferlet, [5], 0)
    (wave,) = made.drain()
    assert [len(one.embeds) for one in wave.batches if isinstance(one, EmbedTxt | GetNextDist)] == [5, 5]


@pytest.mark.parametrize("others", [0, 1, 3])
def test_its_batches_are_those_of_the_three_calls(others: int) -> None:
    """Beside steps of other inferlets, over contexts in one piece and in several, at any place of a page."""
    batches = []
    for at_once in (True, False):
        made = World(page_size=4)
        inferlets = [made.open(6, 40) for _ in range(1 + others)]
        for number, inferlet in enumerate(inferlets):
            first = 3 + number
            inferlet.call("embed_txt", 1, [7] * first, list(range(first)), [0, first])
            inferlet.call("forward", 1, [0, 2, 4, 2], [0, first], [0, 2, 4, 2], [])
        made.drain()
        sent = []
        for step in range(10):
            for number, inferlet in enumerate(inferlets):
                position, pages = 3 + number + step, [0, 2, 4, 2]
                if at_once:
                    inferlet.call("forward_with_dist", 1, [9], [position], [20, 1], pages, pages, 39, 3, 1.0)
                else:
                    inferlet.call("embed_txt", 1, [9], [position], [20, 1])
                    inferlet.call("forward", 1, pages, [20, 1], pages, [39, 1])
                    inferlet.call("get_next_dist", 1, 39, 3, 1.0)
            sent += [msgspec.structs.asdict(batch) for wave in made.drain() for batch in wave.batches]
        batches.append([{key: np.asarray(value).tolist() for key, value in batch.items()} for batch in sent])
    assert batches[0] == batches[1]


@pytest.mark.parametrize(("input", "waves"), [(20, 1), (0, 2)])
def test_a_step_goes_with_a_forward_before_it_unless_it_fills_its_inputs(input: int, waves: int) -> None:
    made, inferlet = world()
    inferlet.call("embed_txt", 1, [1, 2], [0, 1], [0, 2])
    inferlet.call("forward", 1, [0, 2], [0, 2], [0, 2], [])
    call_step(inferlet, [5], 2, input=input)
    assert len(made.drain()) == waves


def test_a_long_step_is_three_commands_which_may_be_split() -> None:
    made, inferlet = world(max_batch_tokens=16)
    call_step(inferlet, [5] * 30, 0)
    assert [len(by_kind(wave)[Forward].q_embeds) for wave in made.drain()] == [16, 14]


def test_a_long_step_is_refused_as_a_whole_if_three_commands_are_too_many() -> None:
    _, inferlet = world()
    most = inferlet.space._most_waiting = inferlet.space.waiting + 2
    inferlet.space.ledger.quota = dataclasses.replace(inferlet.space.ledger.quota, commands=most)
    before = inferlet.space.seq
    with pytest.raises(QuotaExceeded, match="waiting commands"):
        call_step(inferlet, [5] * 30, 0)
    assert inferlet.space.seq == before
    call_step(inferlet, [5], 0)


def test_steps_that_do_not_fit_go_with_the_next_wave() -> None:
    made = World(page_size=32, max_batch_tokens=20)
    for inferlet in [made.open(2, 40) for _ in range(3)]:
        call_step(inferlet, [5] * 8, 0)
    assert [len(by_kind(wave)[Forward].q_embeds) for wave in made.drain()] == [16, 8]


def test_rows_bound_steps() -> None:
    made = World(page_size=32, max_batch_rows=2)
    for inferlet in [made.open(2, 40) for _ in range(5)]:
        call_step(inferlet, [5], 0)
    waves = [by_kind(wave) for wave in made.drain()]
    assert [len(wave[GetNextDist].embeds) for wave in waves] == [2, 2, 1]
    assert [len(wave[EmbedTxt].embeds) for wave in waves] == [2, 2, 1]


# ---- failures ----


def fail(made: World, batch: type[Any]) -> None:
    """Runs a wave in which the first command of a batch fails."""
    wave = made.send()
    assert wave is not None
    number = [type(one) for one in wave.batches].index(batch)
    done = made.run()
    made.turn(msgspec.structs.replace(done, failures=(Failure(number, 0, "broken"),)))
    made.tell()


@pytest.mark.parametrize("batch", [EmbedTxt, Forward])
def test_an_inferlet_ends_if_what_its_step_should_have_left_is_missing(batch: type[Any]) -> None:
    made = World(page_size=32)
    first, second = made.open(2, 40), made.open(2, 40)
    failed, fine = call_step(first, [5], 0), call_step(second, [5], 0)
    fail(made, batch)
    assert first.ending is not None
    assert second.ending is None
    assert isinstance(first.answers[failed], WorkerError)
    assert isinstance(second.answers[fine], Dists)


def test_an_output_that_fails_is_told_by_its_future_alone() -> None:
    made = World(page_size=32)
    first, second = made.open(2, 40), made.open(2, 40)
    failed, fine = call_step(first, [5], 0), call_step(second, [5], 0)
    fail(made, GetNextDist)
    assert (first.ending, second.ending) == (None, None)
    assert isinstance(first.answers[failed], WorkerError)
    assert isinstance(second.answers[fine], Dists)
    call_step(first, [6], 1)
    made.drain()
    assert len(first.answers) == 2
