from __future__ import annotations

from array import array
from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pie_control.calls.exports.sharing import cancel_fetch, fetched, packed_size
from pie_control.calls.values import Import
from pie_control.errors import InvalidArgument, InvalidState, NotFound, QuotaExceeded, TooLong
from pie_control.resources.kinds import PAGES
from tests.helpers.refusals import GREEDY, NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal


def packed(*tokens: int) -> str:
    return b64encode(array("I", tokens)).decode()


REFUSED = [
    refusal(NotFound, NO_QUEUE, "export_kvpage", 9, "a", [0, 1], ""),
    refusal(NotFound, "KV page 4 is not allocated", "export_kvpage", Q, "a", [3, 2], ""),
    refusal(InvalidArgument, "KV page 0 is named twice", "export_kvpage", Q, "a", [0, 1, 0, 1], ""),
    refusal(InvalidArgument, "an export has 1 to 32768 pages", "export_kvpage", Q, "a", [], ""),
    refusal(InvalidArgument, "an export has 1 to 32768 pages", "export_kvpage", Q, "a", [0, 1 << 30], ""),
    refusal(InvalidArgument, "has 1 to 256 bytes, not 0", "export_kvpage", Q, "", [0, 1], ""),
    refusal(InvalidArgument, "has 1 to 256 bytes, not 257", "export_kvpage", Q, "a" * 257, [0, 1], ""),
    refusal(InvalidArgument, "must be printable", "export_kvpage", Q, "a\x1b[2J", [0, 1], ""),
    refusal(InvalidArgument, "tokens are base64 of little-endian u32", "export_kvpage", Q, "a", [0, 1], "???"),
    refusal(InvalidArgument, "tokens are base64 of little-endian u32", "export_kvpage", Q, "a", [0, 1], "AAAA"),
    refusal(InvalidArgument, "2 tokens are named, the pages hold 3", "export_kvpage", Q, "a", [0, 2], packed(1, 2)),
    refusal(InvalidArgument, "token 259 is outside", "export_kvpage", Q, "a", [0, 2], packed(1, 259, 2)),
    refusal(NotFound, NO_QUEUE, "import_kvpage", 9, "a"),
    refusal(InvalidArgument, "has 1 to 256 bytes, not 0", "import_kvpage", Q, ""),
    refusal(NotFound, NO_QUEUE, "unexport_kvpage", 9, "a"),
    refusal(InvalidArgument, "must be printable", "unexport_kvpage", Q, "\n"),
    refusal(NotFound, NO_QUEUE, "list_exports", 9, ""),
    refusal(NotFound, NO_QUEUE, "export_prefix", 9, [0, 1], packed(65, 66, 67, 68), ""),
    refusal(InvalidArgument, "tokens are base64", "export_prefix", Q, [0, 1], "???", ""),
    refusal(InvalidArgument, "3 tokens for pages with 4 slots", "export_prefix", Q, [0, 1], packed(65, 66, 67), ""),
    refusal(InvalidArgument, "0 tokens for pages with 0 slots", "export_prefix", Q, [], "", ""),
    refusal(NotFound, "KV page 4 is not allocated", "export_prefix", Q, [4, 1], packed(1, 2, 3, 4), ""),
    refusal(InvalidArgument, "do not hold tokens at", "export_prefix", Q, [0, 1], packed(65, 66, 67, 68), ""),
    refusal(InvalidArgument, "`apart` has 1025 bytes", "export_prefix", Q, [0, 1], packed(1, 2, 3, 4), "a" * 1025),
    refusal(NotFound, NO_QUEUE, "import_prefix", 9, packed(1, 2, 3, 4), ""),
    refusal(InvalidArgument, "token 259 is outside", "import_prefix", Q, packed(1, 2, 3, 259), ""),
    refusal(TooLong, "more tokens than the 131072", "import_prefix", Q, "A" * packed_size(131_075), ""),
    refusal(InvalidArgument, "the tokens fill no page of 4 slots", "import_prefix", Q, packed(1, 2, 3), ""),
    refusal(InvalidArgument, "`apart` has 1025 bytes", "import_prefix", Q, packed(1, 2, 3, 4), "a" * 1025),
    refusal(NotFound, NO_QUEUE, "pin_exports", 9, "a", "", "", 5),
    refusal(InvalidArgument, "has 1 to 256 bytes, not 257", "pin_exports", Q, "a" * 257, "", "", 5),
    refusal(InvalidArgument, "give a name, or tokens that fill a page of 4", "pin_exports", Q, "", "", "", 5),
    refusal(InvalidArgument, "pinned for 86400 at most", "pin_exports", Q, "a", "", "", 86401),
    refusal(InvalidArgument, "a prefix of 300 bytes: names have 256 at most", "list_exports", Q, "a" * 300),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_nobody_writes_to_sealed_pages() -> None:
    inferlet, _ = prepare()
    inferlet.call("export_kvpage", Q, "a", [0, 1], "")
    pages = inferlet.space.pages
    sealed = "page 0 is sealed, for it was exported or imported: nobody writes to it. Leave it out"
    calls: list[tuple[Any, ...]] = [
        ("forward", Q, [], [0, 2], [0, 2], []),
        ("forward", Q, [], [0, 1], [0, 1], []),
        ("copy_kvpage", Q, [1, 1], [0, 1]),
        ("copy_kvpage", Q, [1, 1], [3, 1]),
        ("trim_kvpage", Q, [0, 1], 2),
        ("decode", Q, 0, GREEDY, 7, 3, [0, 1], [0, 2], 3, (), ""),
    ]
    for refused in calls:
        with pytest.raises(InvalidState, match=sealed):
            inferlet.call(*refused)
    inferlet.call("trim_kvpage", Q, [0, 1], 3)  # it empties nothing
    inferlet.call("mask_kvpage", Q, [0, 1], [0, 1])  # a change of its own view
    inferlet.call("copy_kvpage", Q, [0, 3], [4, 3])
    inferlet.call("forward", Q, [0, 2], [3, 1], [1, 1], [])
    assert pages.context([(1, 2)], 9, 9).intervals == ((5, 8),)
    assert pages.withheld == 1


def test_a_full_page_may_stand_before_those_that_are_written() -> None:
    inferlet, _ = prepare()
    inferlet.call("forward", Q, [0, 1], [3, 1], [0, 1], [])
    inferlet.call("export_kvpage", Q, "a", [0, 1], "")
    inferlet.call("forward", Q, [0, 1], [0, 2], [0, 2], [])
    assert inferlet.space.pages.fill[:2] == [4, 2]


def test_an_export_that_fails_leaves_the_pages_as_they_were() -> None:
    inferlet, _ = prepare()
    pages = inferlet.space.pages
    before = pages.positions.tolist(), pages.withheld
    first, second = (inferlet.call("export_kvpage", Q, name, [0, 2], "") for name in "ab")
    inferlet.space.answered(first, QuotaExceeded("too much"))
    assert pages.sealed == {0: 1, 1: 1}
    inferlet.space.answered(second, QuotaExceeded("too much"))
    assert (pages.positions.tolist(), pages.withheld, pages.sealed) == (*before, {})


def test_pages_that_a_run_writes_are_not_exported() -> None:
    inferlet, _ = prepare()
    inferlet.call("decode", Q, 0, GREEDY, 7, 3, [0, 1], [0, 2], 3, (), "")
    with pytest.raises(InvalidState, match="a decode run goes on that writes to these pages"):
        inferlet.call("export_kvpage", Q, "a", [0, 1], "")


def test_writes_of_other_queues_are_waited_for() -> None:
    inferlet, handed_on = prepare()
    forward = next(command.seq for command in handed_on[::-1] if hasattr(command, "own"))
    inferlet.call("export_kvpage", OTHER_QUEUE, "a", [0, 1], packed(65, 66, 67))
    assert (handed_on[-1].after, handed_on[-1].tokens.tolist()) == (forward, [65, 66, 67])
    inferlet.call("export_kvpage", Q, "a", [0, 1], "")
    assert handed_on[-1].after == 0


# ---- what an import gives ----


def test_imported_pages_are_sealed_and_count_as_held() -> None:
    maker, _ = prepare()
    maker.call("mask_kvpage", Q, [0, 1], [1, 1])
    positions = maker.space.pages.read(((0, 2),))
    inferlet, handed_on = prepare()
    future = inferlet.call("import_kvpage", Q, "a")
    inferlet.space.answered(future, Import(positions, positions[:0]))
    first, count = fetched(inferlet.space, future)
    assert (first, count, inferlet.held(PAGES)) == (4, 2, 6)
    assert [type(note).__name__ for note in handed_on[-2:]] == ["Fetch", "Adopt"]
    seen = inferlet.space.pages.context([(first, first + 2)], 9, 9)
    assert seen.intervals == ((first * 4, first * 4 + 1), (first * 4 + 2, first * 4 + 3))
    with pytest.raises(InvalidState, match="page 4 is sealed"):
        inferlet.call("forward", Q, [], [0, 1], [first, 1], [])
    inferlet.call("dealloc", Q, "kvpage", [first, 2])
    assert inferlet.space.pages.sealed == {}


def test_more_than_the_inferlet_may_hold_is_told_when_it_is_taken() -> None:
    inferlet, handed_on = prepare()
    future = inferlet.call("import_kvpage", Q, "a")
    inferlet.space.answered(future, Import(maker_positions(7), maker_positions(0)))
    with pytest.raises(QuotaExceeded, match="4 KV pages held and 7 more asked for, the limit is 10"):
        fetched(inferlet.space, future)
    assert type(handed_on[-1]).__name__ == "Discard"
    assert (inferlet.held(PAGES), inferlet.space.imports) == (4, {})


@pytest.mark.parametrize("arrived", [False, True])
def test_what_is_cancelled_is_given_back(arrived: bool) -> None:
    inferlet, handed_on = prepare()
    future = inferlet.call("import_kvpage", Q, "a")
    if arrived:
        inferlet.space.answered(future, Import(maker_positions(2), maker_positions(0)))
    cancel_fetch(inferlet.space, future)
    cancel_fetch(inferlet.space, future)
    if not arrived:
        inferlet.space.answered(future, Import(maker_positions(2), maker_positions(0)))
    assert type(handed_on[-1]).__name__ == ("Release" if arrived else "Discard")
    inferlet.space.progressed(inferlet.space.seq + 1, 10)
    assert (inferlet.held(PAGES), inferlet.space.imports, inferlet.space.pages.sealed) == (4, {}, {})


def test_an_import_that_finds_nothing_holds_nothing() -> None:
    inferlet, handed_on = prepare()
    taken, cancelled = (inferlet.call("import_prefix", Q, packed(1, 2, 3, 4), "") for _ in range(2))
    for future in (taken, cancelled):
        inferlet.space.answered(future, Import(maker_positions(0), maker_positions(0)))
    cancel_fetch(inferlet.space, cancelled)
    assert fetched(inferlet.space, taken) == (0, 0)
    assert (inferlet.held(PAGES), inferlet.space.imports) == (4, {})
    assert [type(note).__name__ for note in handed_on[-2:]] == ["Fetch", "Fetch"]


def maker_positions(pages: int) -> NDArray[np.int32]:
    maker, _ = prepare()
    return maker.space.pages.read(((0, 1),)).repeat(pages)
