"""get_embedding."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from pie_control.errors import CallError, InvalidArgument, InvalidState, NotFound
from pie_inference.protocol import Forward, GetEmbedding
from tests.helpers.refusals import HOLDS_AN_INPUT, NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare
from tests.helpers.scheduling import World, by_kind


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (NotFound, NO_QUEUE, (9, [0, 2], "last", 0, True)),
        (InvalidArgument, "0 embeds are named; there may be 1 to 16", (Q, [], "last", 0, True)),
        (InvalidArgument, "17 embeds are named; there may be 1 to 16", (Q, [0, 17], "mean", 0, True)),
        (InvalidArgument, "pooling is 'cls'; it must be one of last, mean", (Q, [0, 2], "cls", 0, True)),
        (InvalidArgument, "dimensions is 9; it must lie between 0 and 8", (Q, [0, 2], "last", 9, True)),
        (InvalidState, HOLDS_AN_INPUT, (Q, [2, 2], "last", 0, True)),
        (InvalidState, "embed 4 was never filled", (Q, [4, 1], "last", 0, True)),
        (NotFound, "embed 8 is not allocated", (Q, [7, 2], "last", 0, True)),
    ],
)
def test_a_refused_call_is_named_and_changes_nothing(
    error: type[CallError], message: str, arguments: tuple[Any, ...]
) -> None:
    check_refused(Refusal(error, message, "get_embedding", arguments))


def test_an_output_that_another_queue_writes_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    forward = handed_on[-2].seq
    inferlet.call("get_embedding", OTHER_QUEUE, [0, 1], "last", 0, True)
    assert handed_on[-1].after == forward


def test_vectors_of_many_texts_go_in_the_wave_of_their_forwards() -> None:
    world = World(max_batch_tokens=16)
    inferlet = world.open(8, 8)
    inferlet.embed(0, 3)
    first = inferlet.embeds
    inferlet.forward(0, 3, 4)
    asked = [("last", 0, True), ("mean", 0, True), ("mean", 3, True), ("mean", 0, False), ("mean", 0, True)]
    futures = [inferlet.call("get_embedding", 1, [first, 3], *one) for one in asked]
    alone = [inferlet.call("get_embedding", 1, [first + n, 1], "last", 0, False) for n in range(3)]
    waves = [by_kind(wave) for wave in world.drain()]
    assert [len(wave[GetEmbedding].embeds) for wave in waves if GetEmbedding in wave] == [16, 2]
    assert GetEmbedding in next(wave for wave in waves if Forward in wave)
    answers: dict[int, Any] = inferlet.answers
    last, mean, short, whole, again = (np.frombuffer(b64decode(answers[one].text), "<f4") for one in futures)
    states = np.array([np.frombuffer(b64decode(answers[one].text), "<f4") for one in alone])
    assert whole == pytest.approx(states.mean(0), abs=1e-6)
    assert last == pytest.approx(states[2] / np.linalg.norm(states[2]), abs=1e-6)
    assert mean == pytest.approx(whole / np.linalg.norm(whole), abs=1e-6)
    assert short == pytest.approx(whole[:3] / np.linalg.norm(whole[:3]), abs=1e-6)
    assert again.tolist() == mean.tolist()
