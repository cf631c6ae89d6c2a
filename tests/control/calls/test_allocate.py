"""alloc_*, dealloc_* and trim_kvpage."""

from __future__ import annotations

import pytest

from pie_control.calls.kind import Bind, Release
from pie_control.errors import Exhausted, InvalidArgument, NotFound, QuotaExceeded
from pie_control.resources.holdings import Freed
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from tests.helpers.refusals import NO_QUEUE, Q, Refusal, check_refused, prepare, refusal

REFUSED = [
    refusal(NotFound, NO_QUEUE, "alloc", 9, "kvpage", 1),
    refusal(InvalidArgument, "0 KV pages asked for; ask for at least 1", "alloc", Q, "kvpage", 0),
    refusal(QuotaExceeded, "4 KV pages held and 7 more asked for, the limit is 10", "alloc", Q, "kvpage", 7),
    refusal(Exhausted, "the whole pool has 28", "alloc", Q, "kvpage", 29),
    refusal(Exhausted, "4 KV pages held and 25 more", "alloc", Q, "kvpage", 25),
    refusal(NotFound, NO_QUEUE, "alloc", 9, "emb", 1),
    refusal(InvalidArgument, "0 embeds asked for; ask for at least 1", "alloc", Q, "emb", 0),
    refusal(QuotaExceeded, "8 embeds held and 33 more asked for, the limit is 40", "alloc", Q, "emb", 33),
    refusal(Exhausted, "the whole pool has 100", "alloc", Q, "emb", 101),
    refusal(NotFound, NO_QUEUE, "dealloc", 9, "kvpage", [0, 1]),
    refusal(NotFound, "KV page 4 is not allocated", "dealloc", Q, "kvpage", [3, 2]),
    refusal(NotFound, "KV page 4 is not allocated", "dealloc", Q, "kvpage", [0, 1, 4, 1]),
    refusal(InvalidArgument, "KV page 1 is named twice", "dealloc", Q, "kvpage", [0, 2, 1, 1]),
    refusal(InvalidArgument, "a list of KV page ranges is first, length", "dealloc", Q, "kvpage", [0]),
    refusal(NotFound, NO_QUEUE, "dealloc", 9, "emb", [0, 1]),
    refusal(NotFound, "embed 8 is not allocated", "dealloc", Q, "emb", [7, 2]),
    refusal(InvalidArgument, "embed 1 is named twice", "dealloc", Q, "emb", [0, 2, 1, 1]),
    refusal(InvalidArgument, "embed range (-1, 2): neither number may be negative", "dealloc", Q, "emb", [-1, 2]),
    refusal(NotFound, NO_QUEUE, "trim_kvpage", 9, [0, 1], 0),
    refusal(NotFound, "KV page 4 is not allocated", "trim_kvpage", Q, [4, 1], 0),
    refusal(InvalidArgument, "keep is -1; it must not be negative", "trim_kvpage", Q, [0, 1], -1),
    refusal(InvalidArgument, "KV page 0 is named twice", "trim_kvpage", Q, [0, 1, 0, 1], 0),
]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


@pytest.mark.parametrize(("kind", "resource", "first"), [("kvpage", PAGES, 4), ("emb", EMBEDS, 8)])
def test_an_allocation_gives_consecutive_addresses_at_once(kind: str, resource: Resource, first: int) -> None:
    inferlet, handed_on = prepare()
    assert inferlet.call("alloc", Q, kind, 3) == first
    bind = handed_on[-1]
    assert isinstance(bind, Bind)
    assert (bind.resource, bind.first, bind.count, bind.after) == (resource, first, 3, 0)
    table = inferlet.space.pages if resource is PAGES else inferlet.space.embeds
    table.check_owned([(first, first + 3)])


@pytest.mark.parametrize(("kind", "resource"), [("kvpage", PAGES), ("emb", EMBEDS)])
def test_what_is_given_back_is_named_with_the_last_command_that_may_use_it(kind: str, resource: Resource) -> None:
    inferlet, handed_on = prepare()
    before = inferlet.space.seq
    inferlet.call("dealloc", Q, kind, [3, 1, 0, 2])
    assert handed_on[-1] == Release(7, Freed(before + 1, resource, ((3, 4), (0, 2))))
    with pytest.raises(NotFound):
        inferlet.call("dealloc", Q, kind, [0, 1])


def test_empty_lists_do_nothing() -> None:
    inferlet, _ = prepare()
    before = inferlet.space.usage()
    inferlet.call("dealloc", Q, "kvpage", [])
    inferlet.call("dealloc", Q, "emb", [0, 0])
    inferlet.call("trim_kvpage", Q, [], 0)
    assert inferlet.space.usage() == before


def test_a_trim_changes_what_later_forwards_see_and_where_they_write() -> None:
    inferlet, handed_on = prepare()
    last = inferlet.space.seq
    inferlet.call("trim_kvpage", Q, [0, 2], 1)
    assert handed_on[-1].seq == last, "the worker has nothing to do"
    inferlet.call("forward", Q, [0, 2], [3, 1], [0, 2], [])
    forward = handed_on[-1]
    assert (forward.context.tokens, forward.own) == (1, ((1, 2),))
    assert forward.after == last, "earlier commands may still read the slot"


def test_a_trim_that_drops_nothing_holds_nobody_up() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("trim_kvpage", Q, [0, 2], 3)
    inferlet.call("forward", Q, [0, 2], [3, 1], [0, 2], [])
    assert handed_on[-1].after == 0
