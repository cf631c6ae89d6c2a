from __future__ import annotations

import pytest

from pie_control.errors import InvalidArgument, InvalidState, NotFound
from pie_inference.protocol import Forward
from tests.helpers.refusals import NO_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World, by_kind

ENDS = "the mask ends within input 1 of 2: it has the number of ranges of each input"
REFUSED = [
    refusal(NotFound, NO_QUEUE, "forward_with_mask", 9, [], [0, 1], [], [], [0]),
    refusal(InvalidState, "embed 4 was never filled", "forward_with_mask", Q, [], [4, 1], [], [], [0]),
    refusal(NotFound, "KV page 4 is not allocated", "forward_with_mask", Q, [4, 1], [0, 1], [], [], [0]),
    refusal(InvalidArgument, ENDS, "forward_with_mask", Q, [], [0, 2], [], [], [0]),
    refusal(InvalidArgument, ENDS, "forward_with_mask", Q, [], [0, 2], [], [], [0, 1]),
    refusal(InvalidArgument, ENDS, "forward_with_mask", Q, [], [0, 2], [], [], [0, 1, 0]),
    refusal(InvalidArgument, ENDS, "forward_with_mask", Q, [], [0, 2], [], [], [0, 2**32 - 1]),
    refusal(
        InvalidArgument,
        "the mask has 2 numbers behind those of the last of 1 inputs",
        "forward_with_mask",
        Q,
        [],
        [0, 1],
        [],
        [],
        [0, 5, 6],
    ),
    refusal(
        InvalidArgument,
        "range (3, 2) of input 0 is not within the 4 columns of the mask: the 3 tokens of the context",
        "forward_with_mask",
        Q,
        [0, 1],
        [0, 1],
        [],
        [],
        [2, 0, 4, 3, 2],
    ),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_ranges_count_hidden_tokens_and_show_none() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("mask_kvpage", Q, [0, 1], [1, 1])
    inferlet.call("forward_with_mask", Q, [0, 1], [0, 2], [1, 1], [], [2, 0, 2, 3, 1, 2, 1, 2, 4, 1])
    context = handed_on[-1].context
    assert (context.intervals, context.tokens, handed_on[-1].whole) == (((0, 1), (2, 3)), 2, False)
    mask = context.mask
    ranges = list(zip(mask.rows.tolist(), mask.begins.tolist(), mask.ends.tolist(), strict=True))
    assert ranges == [(0, 0, 1), (0, 2, 3), (1, 1, 2), (1, 3, 4)]


def test_a_mask_that_shows_later_inputs_keeps_the_call_together() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("forward_with_mask", Q, [0, 1], [0, 2], [1, 1], [], [1, 0, 5, 0])
    assert handed_on[-1].whole
    world = World(max_batch_tokens=4)
    long = world.open(4, 16)
    long.embed(0, 6)
    looks_ahead = [1, 0, 6] * 6
    with pytest.raises(InvalidArgument, match="the mask shows inputs to those before them; at most 4 inputs can run"):
        long.call("forward_with_mask", 1, [], [long.embeds, 6], [long.pages, 4], [], looks_ahead)


def test_a_long_call_is_split_with_its_mask_and_goes_with_others() -> None:
    world = World(max_batch_tokens=4)
    inferlet, other = world.open(4, 16), world.open(4, 16)
    inferlet.embed(0, 6)
    other.embed(0, 2)
    rows = [number for row in range(6) for number in ((1, 0, row + 1) if row % 2 else (0,))]
    inferlet.call("forward_with_mask", 1, [], [inferlet.embeds, 6], [inferlet.pages, 4], [], rows)
    other.forward(0, 2)
    forwards = [by_kind(wave)[Forward] for wave in world.drain() if Forward in by_kind(wave)]
    seen = [
        (row + before, begin, end)
        for before, one in zip((0, *(len(each.q_slots) for each in forwards)), forwards, strict=False)
        if one.masked is not None
        for row, begin, end in zip(one.range_rows, one.range_begins, one.range_ends, strict=True)
    ]
    assert sorted((begin, end) for _, begin, end in seen) == [(0, 2), (0, 4), (0, 6)]
