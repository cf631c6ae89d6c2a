"""get_next_dist and get_logprobs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pie_control.calls.output_text import get_logprobs
from pie_control.calls.output_text.get_logprobs import Logprobs
from pie_control.calls.output_text.get_next_dist import Dists
from pie_control.errors import CallError, InvalidArgument, InvalidState, NotFound
from pie_inference.protocol import GetLogprobs, GetNextDist
from tests.helpers.refusals import HOLDS_AN_INPUT, NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World, by_kind

REFUSED = [
    refusal(NotFound, NO_QUEUE, "get_next_dist", 9, 0, 5, 1.0),
    refusal(InvalidArgument, "embed -1 is negative", "get_next_dist", Q, -1, 5, 1.0),
    refusal(InvalidState, "embed 5 was never filled", "get_next_dist", Q, 5, 5, 1.0),
    refusal(InvalidState, HOLDS_AN_INPUT, "get_next_dist", Q, 3, 5, 1.0),
    refusal(InvalidState, HOLDS_AN_INPUT, "get_logprobs", Q, 3, [1]),
    refusal(NotFound, "embed 8 is not allocated", "get_next_dist", Q, 8, 5, 1.0),
    refusal(NotFound, "embed 1000 is not allocated", "get_next_dist", Q, 1000, 5, 1.0),
    refusal(InvalidArgument, "k is 999; it must lie between 0 and 259", "get_next_dist", Q, 0, 999, 1.0),
    refusal(InvalidArgument, "k is -1; it must lie", "get_next_dist", Q, 0, -1, 1.0),
    refusal(InvalidArgument, "temperature is 0.0; it must be above 0", "get_next_dist", Q, 0, 5, 0.0),
    refusal(InvalidArgument, "temperature is nan", "get_next_dist", Q, 0, 5, math.nan),
    refusal(InvalidArgument, "temperature is inf", "get_next_dist", Q, 0, 5, math.inf),
    refusal(NotFound, NO_QUEUE, "get_logprobs", 9, 0, [1]),
    refusal(InvalidArgument, "embed -1 is negative", "get_logprobs", Q, -1, [1]),
    refusal(InvalidState, "embed 5 was never filled", "get_logprobs", Q, 5, [1]),
    refusal(InvalidArgument, "token 300 is outside of the vocabulary of 259", "get_logprobs", Q, 0, [1, 300]),
    refusal(InvalidArgument, "260 tokens are more than the vocabulary of 259", "get_logprobs", Q, 0, [1] * 260),
    refusal(InvalidArgument, "token -1 is outside", "get_logprobs", Q, 0, [-1]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_without_k_as_many_come_as_in_the_paper() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("get_next_dist", Q, 0, 0, 1.0)
    assert handed_on[-1].k == 256


def test_an_output_that_another_queue_writes_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    forward = handed_on[-2].seq
    inferlet.call("get_logprobs", OTHER_QUEUE, 0, [1])
    assert handed_on[-1].after == forward
    inferlet.call("get_logprobs", Q, 0, [])
    assert handed_on[-1].after == 0


def test_a_wave_scores_a_bounded_number_of_tokens_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_logprobs, "MOST_LISTED", 10)
    world = World()
    inferlet = world.open(8, 8)
    inferlet.embed(0)
    inferlet.forward(0, 1, 0)
    sizes = [4, 6, 1, 20, 3]
    futures = [inferlet.call("get_logprobs", 1, inferlet.embeds, [1] * size) for size in sizes]
    assert [len(by_kind(wave)[GetLogprobs].tokens) for wave in world.drain()] == [10, 1, 20, 3]
    answers = [inferlet.answers[future] for future in futures]
    assert [len(answer.logprobs) for answer in answers if isinstance(answer, Logprobs)] == sizes


# ---- several embeds in one call ----


@pytest.mark.parametrize(
    ("error", "message", "call", "arguments"),
    [
        (NotFound, NO_QUEUE, "get_next_dist", (9, [0, 2], 3, 1.0)),
        (InvalidArgument, "0 embeds are named; there may be 1 to 6", "get_next_dist", (Q, [], 3, 1.0)),
        (InvalidArgument, "8 embeds are named; there may be 1 to 6", "get_next_dist", (Q, [0, 8], 3, 1.0)),
        (InvalidArgument, "k is 260; it must lie between 0 and 259", "get_next_dist", (Q, [0, 2], 260, 1.0)),
        (InvalidArgument, "temperature is 0.0", "get_next_dist", (Q, [0, 2], 3, 0.0)),
        (InvalidArgument, "embed 0 is named twice", "get_next_dist", (Q, [0, 1, 0, 1], 3, 1.0)),
        (InvalidState, HOLDS_AN_INPUT, "get_next_dist", (Q, [2, 2], 3, 1.0)),
        (InvalidState, "embed 4 was never filled", "get_next_dist", (Q, [4, 1], 3, 1.0)),
        (NotFound, "embed 8 is not allocated", "get_next_dist", (Q, [7, 2], 3, 1.0)),
        (NotFound, NO_QUEUE, "get_logprobs", (9, [0, 2], [1, 2])),
        (InvalidArgument, "0 embeds are named", "get_logprobs", (Q, [], [1])),
        (
            InvalidArgument,
            "got 3 tokens for 2 embeds: name as many for each",
            "get_logprobs",
            (Q, [0, 2], [1, 2, 3]),
        ),
        (InvalidArgument, "got 0 tokens for 2 embeds", "get_logprobs", (Q, [0, 2], [])),
        (InvalidArgument, "token 259 is outside", "get_logprobs", (Q, [0, 1], [259])),
        (InvalidState, HOLDS_AN_INPUT, "get_logprobs", (Q, [3, 1], [1])),
    ],
)
def test_a_refused_list_is_named_and_changes_nothing(
    error: type[CallError], message: str, call: str, arguments: tuple[Any, ...]
) -> None:
    check_refused(Refusal(error, message, call, arguments))


def test_a_list_gives_what_single_calls_give() -> None:
    world = World(max_batch_rows=4)
    inferlet = world.open(8, 8)
    inferlet.embed(0, 3)
    first = inferlet.embeds
    single = [inferlet.call("get_next_dist", 1, first + n, 5, 1.0) for n in range(3)]
    scored = [inferlet.call("get_logprobs", 1, first + n, [7, 8]) for n in range(3)]
    dists = [inferlet.call("get_next_dist", 1, [first, 3], 5, 1.0) for _ in range(2)]
    logprobs = inferlet.call("get_logprobs", 1, [first, 3], [7, 8] * 3)
    waves = world.drain()
    assert [len(by_kind(wave)[GetNextDist].embeds) for wave in waves if GetNextDist in by_kind(wave)] == [3, 3, 3]
    answers: dict[int, Any] = inferlet.answers
    found = [answers[number] for number in single]
    for number in dists:
        together = answers[number]
        assert isinstance(together, Dists)
        assert together.tokens.tolist() == [token for one in found for token in one.tokens.tolist()]
        assert together.probabilities.tolist() == [p for one in found for p in one.probabilities.tolist()]
        assert together.rest.tolist() == pytest.approx([float(one.rest[0]) for one in found])
    wanted = [value for number in scored for value in answers[number].logprobs.tolist()]
    assert answers[logprobs].logprobs.tolist() == wanted
