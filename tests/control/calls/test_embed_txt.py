from __future__ import annotations

import pytest

from pie_control.errors import InvalidArgument, NotFound
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import name_token

REFUSED = [
    refusal(NotFound, NO_QUEUE, "embed_txt", 9, [1], [4], [4, 1]),
    refusal(
        InvalidArgument,
        "embed-txt got 2 tokens, 1 positions and 1 embeds; the numbers must be equal",
        "embed_txt",
        Q,
        [1, 2],
        [4],
        [4, 1],
    ),
    refusal(InvalidArgument, "got 1 tokens, 1 positions and 2 embeds", "embed_txt", Q, [1], [4], [4, 2]),
    refusal(InvalidArgument, "got 0 tokens, 0 positions and 1 embeds", "embed_txt", Q, [], [], [4, 1]),
    refusal(InvalidArgument, "position 40 is outside of the model's context of 40", "embed_txt", Q, [1], [40], [4, 1]),
    refusal(InvalidArgument, "position -1 is outside", "embed_txt", Q, [1, 1], [3, -1], [4, 2]),
    refusal(InvalidArgument, "token 300 is outside of the vocabulary of 259", "embed_txt", Q, [300], [4], [4, 1]),
    refusal(InvalidArgument, "token 259 is outside of the vocabulary of 259", "embed_txt", Q, [259], [4], [4, 1]),
    refusal(InvalidArgument, "token -1 is negative", "embed_txt", Q, [-1], [4], [4, 1]),
    refusal(InvalidArgument, "token -1 is outside", "embed_txt", Q, [name_token(1), -1], [4, 5], [4, 2]),
    refusal(NotFound, "embed 8 is not allocated", "embed_txt", Q, [1, 2], [4, 5], [7, 2]),
    refusal(InvalidArgument, "embed 4 is named twice", "embed_txt", Q, [1, 2], [4, 5], [4, 1, 4, 1]),
    refusal(NotFound, "token reference 7 names no `sample`", "embed_txt", Q, [name_token(7)], [4], [4, 1]),
    refusal(NotFound, "4294967295 is outside of the vocabulary of 259", "embed_txt", Q, [2**32 - 1], [4], [4, 1]),
    refusal(
        InvalidArgument,
        "token reference 1 belongs to queue 1, not to queue 2",
        "embed_txt",
        OTHER_QUEUE,
        [name_token(1)],
        [4],
        [4, 1],
    ),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_a_reference_stands_beside_the_tokens() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("embed_txt", Q, [5, name_token(1), 6], [7, 8, 9], [4, 1, 6, 2])
    command = handed_on[-1]
    assert (command.tokens, command.references, command.embeds) == ([5, 0, 6], [(1, 1)], ((4, 5), (6, 8)))
    assert inferlet.space.embeds.positions[4:8] == [7, -1, 8, 9]


def test_an_embed_that_another_queue_uses_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    sample = handed_on[-1].seq
    inferlet.call("embed_txt", Q, [1], [0], [0, 1])
    assert handed_on[-1].after == 0
    inferlet.call("embed_txt", OTHER_QUEUE, [1], [0], [1, 1])
    assert handed_on[-1].after == sample - 1, "the forward reads it"


def test_empty_lists_do_nothing() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on), inferlet.space.seq
    inferlet.call("embed_txt", Q, [], [], [])
    assert (len(handed_on), inferlet.space.seq) == before
