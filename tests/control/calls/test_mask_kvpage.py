from __future__ import annotations

import pytest

from pie_control.errors import InvalidArgument, InvalidState, NotFound
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal

REFUSED = [
    refusal(NotFound, NO_QUEUE, "mask_kvpage", 9, [0, 1], []),
    refusal(NotFound, "KV page 4 is not allocated", "mask_kvpage", Q, [3, 2], []),
    refusal(InvalidArgument, "KV page 0 is named twice", "mask_kvpage", Q, [0, 1, 0, 1], []),
    refusal(InvalidArgument, "hidden slot 1 is named twice", "mask_kvpage", Q, [0, 1], [0, 2, 1, 1]),
    refusal(
        InvalidArgument, "hidden slot 8 is not in the 2 pages, which have 8 slots", "mask_kvpage", Q, [0, 2], [7, 2]
    ),
    refusal(InvalidState, "slot 3 of the pages holds no token", "mask_kvpage", Q, [0, 2], [1, 3]),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_a_hidden_token_is_not_seen_and_its_slot_is_not_free() -> None:
    inferlet, handed_on = prepare()
    seen = inferlet.space.pages.context
    assert seen([(0, 1)], 9, 9).intervals == ((0, 3),)
    before = len(handed_on)
    inferlet.call("mask_kvpage", Q, [0, 1], [1, 1])
    assert len(handed_on) == before, "it is no command"
    assert seen([(0, 1)], 9, 9).intervals == ((0, 1), (2, 3))
    assert inferlet.space.pages.free_slots([(0, 1)], 1) == ((3, 4),)
    with pytest.raises(InvalidState, match="have 1;"):
        inferlet.space.pages.free_slots([(0, 1)], 2)


def test_what_is_not_named_again_is_shown_with_its_position() -> None:
    inferlet, _ = prepare()
    pages = inferlet.space.pages
    before = pages.positions.tolist(), list(pages.fill), list(pages.top)
    inferlet.call("mask_kvpage", Q, [0, 1], [0, 3])
    assert pages.context([(0, 1)], 9, 9).tokens == 0
    assert pages.fill[0] != 0, "it holds tokens"
    inferlet.call("mask_kvpage", Q, [0, 1], [])
    assert (pages.positions.tolist(), list(pages.fill), list(pages.top)) == before


def test_forwards_issued_before_see_what_they_saw() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("forward", Q, [0, 1], [3, 1], [], [])
    inferlet.call("mask_kvpage", OTHER_QUEUE, [0, 1], [0, 2])
    inferlet.call("forward", Q, [0, 1], [3, 1], [], [])
    assert [command.context.tokens for command in handed_on[-2:]] == [3, 1]


def test_a_copy_of_a_hidden_token_is_hidden_and_a_trim_forgets_it() -> None:
    inferlet, _ = prepare()
    pages = inferlet.space.pages
    inferlet.call("mask_kvpage", Q, [0, 1], [0, 1])
    inferlet.call("copy_kvpage", Q, [0, 2], [8, 2])
    assert pages.context([(2, 3)], 9, 9).intervals == ((9, 10),)
    inferlet.call("trim_kvpage", Q, [2, 1], 0)
    assert pages.free_slots([(2, 3)], 4) == ((8, 12),)
    inferlet.call("copy_kvpage", Q, [1, 1], [0, 1])
    assert pages.context([(0, 1)], 9, 9).intervals == ((0, 3),), "what a copy overwrites is not hidden any more"
