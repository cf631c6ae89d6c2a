from __future__ import annotations

import pytest

from pie_control.calls.forward import shift_kvpage
from pie_control.errors import InvalidArgument, InvalidState, NotFound, Unsupported
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import ShiftKvpage
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal
from tests.helpers.scheduling import World, by_kind

REFUSED = [
    refusal(NotFound, NO_QUEUE, "shift_kvpage", 9, [0, 1], 1),
    refusal(NotFound, "KV page 4 is not allocated", "shift_kvpage", Q, [3, 2], 1),
    refusal(InvalidArgument, "KV page 0 is named twice", "shift_kvpage", Q, [0, 1, 0, 1], 1),
    refusal(InvalidState, "the pages hold no token, or hidden ones only", "shift_kvpage", Q, [1, 2], 1),
    refusal(
        InvalidArgument,
        "tokens at positions 0 to 2 moved by -1 would be at -1 to 1, outside of the model's context of 40 tokens: "
        "move them by 0 to 37",
        "shift_kvpage",
        Q,
        [0, 1],
        -1,
    ),
    refusal(InvalidArgument, "moved by 38 would be at 38 to 40", "shift_kvpage", Q, [0, 1], 38),
    refusal(InvalidArgument, "would be at 2147483647 to 2147483649", "shift_kvpage", Q, [0, 1], 2**31 - 1),
    refusal(InvalidArgument, "would be at -2147483648 to", "shift_kvpage", Q, [0, 1], -(2**31)),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_tokens_are_at_their_new_positions_for_what_is_issued_after_it() -> None:
    inferlet, handed_on = prepare()
    pages, last = inferlet.space.pages, inferlet.space.seq
    inferlet.call("shift_kvpage", Q, [0, 2], 7)
    command = handed_on[-1]
    assert (command.slots, command.positions.tolist()) == (((0, 3),), [7, 8, 9])
    assert command.after == last, "what is earlier may read the tokens"
    assert pages.context([(0, 1)], 9, 9).intervals == ((0, 2),), "position 9 is not below 9"
    assert pages.context([(0, 1)], 10, 10).intervals == ((0, 3),)
    assert (pages.fill[0], pages.top[0]) == (3, 9)


def test_hidden_tokens_stay_where_they_are() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("mask_kvpage", Q, [0, 1], [0, 1])
    inferlet.call("shift_kvpage", Q, [0, 1], -1)
    assert (handed_on[-1].slots, handed_on[-1].positions.tolist()) == (((1, 3),), [0, 1])
    inferlet.call("mask_kvpage", Q, [0, 1], [])
    assert inferlet.space.pages.positions[:4].tolist() == [0, 0, 1, -1]
    inferlet.call("mask_kvpage", Q, [0, 1], [0, 3])
    with pytest.raises(InvalidState, match="hidden ones only"):
        inferlet.call("shift_kvpage", Q, [0, 1], 1)


def test_another_queue_that_reads_the_pages_waits() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("shift_kvpage", Q, [0, 1], 2)
    shift = handed_on[-1]
    inferlet.call("copy_kvpage", OTHER_QUEUE, [0, 1], [8, 1])
    assert handed_on[-1].after == shift.seq


def test_shifts_of_other_tokens_right_behind_each_other_go_together() -> None:
    world = World()
    inferlet = world.open(8, 12)
    inferlet.embed(0, 12)
    inferlet.forward(0, 12)
    world.drain()
    first = inferlet.pages
    for page, by in ((first, 1), (first + 1, 2), (first + 2, 3), (first, 4), (first + 1, 5)):
        inferlet.call("shift_kvpage", 1, [page, 1], by)
    moved = [by_kind(wave)[ShiftKvpage].positions.tolist() for wave in world.drain()]
    assert moved == [[1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14], [5, 6, 7, 8, 11, 12, 13, 14]]


def test_moving_nothing_or_by_nothing_does_nothing() -> None:
    inferlet, handed_on = prepare()
    before = len(handed_on), inferlet.space.seq
    inferlet.call("shift_kvpage", Q, [], 3)
    inferlet.call("shift_kvpage", Q, [0, 1], 0)
    assert (len(handed_on), inferlet.space.seq) == before


def test_an_exported_page_must_be_copied_first() -> None:
    inferlet, _ = prepare()
    inferlet.call("export_kvpage", Q, "name", [0, 1], "")
    with pytest.raises(InvalidState, match=r"page 0 is sealed.*copy its tokens to a page of your own \(copy-kvpage\)"):
        inferlet.call("shift_kvpage", Q, [0, 1], 1)
    inferlet.call("copy_kvpage", Q, [0, 3], [8, 3])
    inferlet.call("shift_kvpage", Q, [2, 1], 1)
    assert inferlet.space.pages.positions[:12].tolist() == [0, 1, 2, -4, -1, -1, -1, -1, 1, 2, 3, -1]


def test_a_model_that_cannot_move_tokens_says_why() -> None:
    inferlet = World(model=FakeModel(num_pages=64, fixed_positions="its positions are learned")).open(4, 4)
    with pytest.raises(
        Unsupported, match=r"model fake cannot move tokens: its positions are learned. Compute them again"
    ):
        inferlet.call("shift_kvpage", 1, [0, 1], 1)


def test_a_wave_moves_a_bounded_number_of_tokens_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift_kvpage, "MOST_TOKENS", 10)
    world = World()
    inferlets = [world.open(8, 12) for _ in range(4)]
    for inferlet in inferlets:
        inferlet.embed(0, 4)
        inferlet.forward(0, 4)
    world.drain()
    for by, inferlet in enumerate(inferlets, 1):
        inferlet.call("shift_kvpage", 1, [inferlet.pages, 2], by)
    moved = [by_kind(wave)[ShiftKvpage] for wave in world.drain()]
    assert [(batch.positions[::4].tolist(), batch.indptr.tolist()) for batch in moved] == [
        ([1, 2], [0, 4, 8]),
        ([3, 4], [0, 4, 8]),
    ]
    inferlets[0].embed(0, 11)
    inferlets[0].forward(0, 11)
    with pytest.raises(InvalidArgument, match="15 tokens are more than 10: move them in several calls"):
        inferlets[0].call("shift_kvpage", 1, [inferlets[0].pages, 8], 1)
