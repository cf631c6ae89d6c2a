from __future__ import annotations

import pytest

from pie_control.calls.allocate import copy_kvpage
from pie_control.errors import InvalidArgument, InvalidState, NotFound
from pie_inference.protocol import CopyKvpage
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World, by_kind

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
    refusal(
        InvalidArgument,
        "4294967295 source slots are more than 65536: copy them in several calls",
        "copy_kvpage",
        Q,
        [0, 2**32 - 1],
        [0, 2**32 - 1],
    ),
    refusal(NotFound, "is not allocated", "copy_kvpage", Q, [0, 60_000], [0, 60_000]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_slots_are_paired_in_the_order_of_the_lists() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("copy_kvpage", Q, [2, 1, 0, 1], [8, 2])
    copy = handed_on[-1]
    assert (copy.source, copy.target, copy.size, copy.after) == (((2, 3), (0, 1)), ((8, 10),), 2, 0)
    assert inferlet.space.pages.positions[8:10].tolist() == [2, 0]


def test_many_slots_are_paired_like_few() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("copy_kvpage", Q, [2, 1, 0, 1, 1, 1], [9, 1, 13, 2])
    assert inferlet.space.pages.positions[8:16].tolist() == [-1, 2, -1, -1, -1, 0, 1, -1]
    assert inferlet.space.pages.fill[2:4] == [-2, -2], "not the first slots of their pages"
    inferlet.call("copy_kvpage", Q, [9, 1], [8, 1])
    assert inferlet.space.pages.fill[2] == 2
    assert handed_on[-1].after == 0
    inferlet.call("copy_kvpage", Q, [0, 1], [14, 1])
    assert handed_on[-1].after == handed_on[-2].seq, "a token is overwritten"


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


def test_a_wave_copies_a_bounded_number_of_slots_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_kvpage, "MOST_SLOTS", 10)
    world = World()
    inferlets = [world.open(8, 8) for _ in range(4)]
    for inferlet in inferlets:
        inferlet.embed(0, 6)
        inferlet.forward(0, 6)
    world.drain()
    for inferlet in inferlets:
        first = inferlet.pages * 4
        inferlet.call("copy_kvpage", 1, [first, 4], [first + 16, 4])
    counts = [len(by_kind(wave)[CopyKvpage].source) for wave in world.drain()]
    assert counts == [8, 8]
