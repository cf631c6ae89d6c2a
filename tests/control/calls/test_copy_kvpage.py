from __future__ import annotations

import pytest

from pie_control.errors import InvalidArgument, InvalidState, NotFound
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal

REFUSED = [
    refusal(NotFound, NO_QUEUE, "copy_kvpage", 9, [0, 1], [8, 1]),
    refusal(InvalidState, "source slot 3 holds no token; copy filled slots only", "copy_kvpage", Q, [2, 2], [8, 2]),
    refusal(
        InvalidArgument,
        "2 source slots and 1 target slots; the numbers must be equal",
        "copy_kvpage",
        Q,
        [0, 2],
        [8, 1],
    ),
    refusal(InvalidArgument, "target slot 8 is named twice", "copy_kvpage", Q, [0, 2], [8, 1, 8, 1]),
    refusal(InvalidArgument, "source slot 0 is named twice", "copy_kvpage", Q, [0, 1, 0, 1], [8, 2]),
    refusal(NotFound, "KV page 4 is not allocated", "copy_kvpage", Q, [0, 2], [15, 2]),
    refusal(NotFound, "KV page 4 is not allocated", "copy_kvpage", Q, [16, 2], [8, 2]),
    refusal(NotFound, "is not allocated", "copy_kvpage", Q, [0, 2**32 - 1], [0, 2**32 - 1]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_slots_are_paired_in_the_order_of_the_lists() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("copy_kvpage", Q, [2, 1, 0, 1], [8, 2])
    copy = handed_on[-1]
    assert (copy.source.tolist(), copy.target.tolist(), copy.after) == ([2, 0], [8, 9], 0)
    assert inferlet.space.pages.positions[8:10].tolist() == [2, 0]


def test_what_is_overwritten_must_not_be_read_any_more() -> None:
    inferlet, handed_on = prepare()
    last = inferlet.space.seq
    inferlet.call("copy_kvpage", Q, [2, 1], [1, 1])
    assert handed_on[-1].after == last


def test_pages_that_another_queue_writes_are_waited_for() -> None:
    inferlet, handed_on = prepare()
    forward = next(command.seq for command in handed_on[::-1] if hasattr(command, "own"))
    inferlet.call("copy_kvpage", OTHER_QUEUE, [0, 1], [8, 1])
    assert handed_on[-1].after == forward


def test_a_slot_that_a_trim_emptied_is_waited_for() -> None:
    inferlet, handed_on = prepare()
    last = inferlet.space.seq
    inferlet.call("trim_kvpage", Q, [0, 1], 1)
    inferlet.call("copy_kvpage", Q, [0, 1], [2, 1])
    assert handed_on[-1].after == last


def test_empty_lists_do_nothing() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on), inferlet.space.seq
    inferlet.call("copy_kvpage", Q, [], [])
    assert (len(handed_on), inferlet.space.seq) == before
