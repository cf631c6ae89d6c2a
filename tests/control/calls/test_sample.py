"""sample."""

from __future__ import annotations

import base64

import pytest

from pie_control.calls.fused import sample
from pie_control.calls.sampler import Sampler, SamplingParams, make_bias
from pie_control.errors import InvalidArgument, InvalidState, NotFound
from pie_inference.protocol import Sample
from tests.helpers.refusals import (
    GREEDY,
    HOLDS_AN_INPUT,
    NO_QUEUE,
    OTHER_QUEUE,
    Q,
    Refusal,
    check_refused,
    prepare,
    refusal,
)
from tests.helpers.scheduling import World, by_kind, name_token


def mask(*tokens: int, size: int = 33) -> str:
    bits = sum(1 << token for token in tokens)
    return base64.b64encode(bits.to_bytes(size, "little")).decode()


BIASED = Sampler(SamplingParams(temperature=0), 0, make_bias([(258, 2.0), (7, -1.0)]))
OUTSIDE = Sampler(SamplingParams(temperature=0), 0, make_bias([(300, 1.0)]))

REFUSED = [
    refusal(NotFound, NO_QUEUE, "sample", 9, 0, GREEDY),
    refusal(InvalidState, "embed 5 was never filled", "sample", Q, 5, GREEDY),
    refusal(InvalidState, HOLDS_AN_INPUT, "sample", Q, 3, GREEDY),
    refusal(InvalidState, HOLDS_AN_INPUT, "sample", Q, 3, GREEDY, [1], mask(1)),
    refusal(NotFound, "embed 9 is not allocated", "sample", Q, 9, GREEDY),
    refusal(InvalidArgument, "embed -1 is negative", "sample", Q, -1, GREEDY),
    refusal(NotFound, NO_QUEUE, "sample", 9, 0, GREEDY, [], ""),
    refusal(InvalidState, "embed 5 was never filled", "sample", Q, 5, GREEDY, [1], mask(1)),
    refusal(
        InvalidArgument,
        "41 recent tokens are more than the model's context of 40: name the latest ones",
        "sample",
        Q,
        0,
        GREEDY,
        [1] * 41,
        "",
    ),
    refusal(InvalidArgument, "`allowed` is not base64", "sample", Q, 0, GREEDY, [], "a!"),
    refusal(InvalidArgument, "`allowed` is not base64", "sample", Q, 0, GREEDY, [], "ä"),
    refusal(
        InvalidArgument,
        "the allowed-token mask has 3 bytes, 259 tokens need 33",
        "sample",
        Q,
        0,
        GREEDY,
        [],
        mask(1, size=3),
    ),
    refusal(InvalidArgument, "mask allows no token", "sample", Q, 0, GREEDY, [], mask()),
    refusal(InvalidArgument, "mask allows no token", "sample", Q, 0, GREEDY, [], mask(259, 263)),
    refusal(InvalidArgument, "token 999 is outside", "sample", Q, 0, GREEDY, [999], ""),
    refusal(InvalidArgument, "token -2 is negative", "sample", Q, 0, GREEDY, [-2], ""),
    refusal(NotFound, "token reference 7", "sample", Q, 0, GREEDY, [name_token(7)], ""),
    refusal(NotFound, NO_QUEUE, "sample", 9, 0, GREEDY, [], "", 1),
    refusal(InvalidState, HOLDS_AN_INPUT, "sample", Q, 3, GREEDY, [], "", 1),
    refusal(InvalidArgument, "34 log-probabilities of a token are asked for", "sample", Q, 0, GREEDY, [], "", 34),
    refusal(InvalidArgument, "mask allows no token", "sample", Q, 0, GREEDY, [], mask(), 1),
    refusal(InvalidArgument, "41 recent tokens", "sample", Q, 0, GREEDY, [1] * 41, "", 1),
    refusal(InvalidArgument, "token 999 is outside", "sample", Q, 0, GREEDY, [999], "", 1),
    refusal(InvalidArgument, "logit_bias names token 300", "sample", Q, 0, OUTSIDE, [], "", 1),
    refusal(InvalidArgument, "logit_bias names token 300, which is outside", "sample", Q, 0, OUTSIDE),
    refusal(InvalidArgument, "belongs to queue 1", "sample", OTHER_QUEUE, 0, GREEDY, [name_token(1)], ""),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


@pytest.mark.parametrize("more", [([], "", 0), ([1], mask(2), 0), ([], "", 3)])
def test_a_sample_takes_the_next_number_of_its_sampler(more: tuple[object, ...]) -> None:
    inferlet, handed_on = prepare()
    sampler, again = (Sampler(SamplingParams(), 5) for _ in range(2))
    for _ in range(3):
        inferlet.call("sample", Q, 0, sampler, *more)
        assert handed_on[-1].uniform == again.draw()
        assert handed_on[-1].params is sampler.params


def test_the_last_token_of_the_vocabulary_may_be_the_only_one_allowed() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("sample", Q, 0, GREEDY, [], mask(258))
    assert handed_on[-1].allowed == bytes(32) + b"\x04"


def test_penalties_may_name_samples() -> None:
    inferlet, handed_on = prepare()
    future = inferlet.call("sample", Q, 0, GREEDY, [3, name_token(1)], "")
    command = handed_on[-1]
    assert (command.recent, command.references, command.allowed) == ([3, 0], [(1, 1)], None)
    inferlet.call("embed_txt", Q, [name_token(future)], [4], [4, 1])


def test_an_output_that_another_queue_writes_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    forward = handed_on[-2].seq
    inferlet.call("sample", OTHER_QUEUE, 0, GREEDY)
    assert handed_on[-1].after == forward


def test_a_wave_counts_a_bounded_number_of_recent_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MOST_LISTED", 10)
    world = World()
    inferlet = world.open(8, 8)
    inferlet.embed(0)
    inferlet.forward(0, 1, 0)
    for size in (4, 6, 1, 20, 3):
        inferlet.call("sample", 1, inferlet.embeds, GREEDY, [1] * size, "")
    assert [len(by_kind(wave)[Sample].recent) for wave in world.drain()] == [10, 1, 20, 3]


def test_a_wave_has_biases_and_log_probabilities_where_a_command_asks() -> None:
    world = World()
    inferlet = world.open(8, 8)
    inferlet.embed(0)
    inferlet.forward(0, 1, 0)
    inferlet.call("sample", 1, inferlet.embeds, GREEDY)
    (wave,) = world.drain()
    alone = by_kind(wave)[Sample]
    assert (alone.bias_indptr, alone.alternatives) == (None, None)
    inferlet.call("sample", 1, inferlet.embeds, GREEDY)
    scored = inferlet.call("sample", 1, inferlet.embeds, BIASED, [], "", 3)
    (wave,) = world.drain()
    batch = by_kind(wave)[Sample]
    assert batch.bias_indptr is not None
    assert batch.bias_tokens is not None
    assert batch.bias_values is not None
    assert batch.alternatives is not None
    assert (batch.bias_indptr.tolist(), batch.bias_tokens.tolist()) == ([0, 0, 2], [258, 7])
    assert (batch.bias_values.tolist(), batch.alternatives.tolist()) == ([2.0, -1.0], [-1, 2])
    value = inferlet.answers[scored]
    assert isinstance(value, sample.ScoredToken)
    assert (len(value.tokens), len(value.logprobs), value.tokens[0]) == (3, 3, value.token)
    assert value.logprobs[1] >= value.logprobs[2]


def test_a_token_with_log_probabilities_may_be_named_before_it_is_known() -> None:
    inferlet, handed_on = prepare()
    future = inferlet.call("sample", Q, 0, GREEDY, [], "", 1)
    inferlet.call("embed_txt", Q, [name_token(future)], [4], [4, 1])
    assert handed_on[-1].references == [(0, future)]
