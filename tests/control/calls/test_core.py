"""Queues."""

from __future__ import annotations

import pytest

from pie_control.calls.kind import Barrier, Prioritize
from pie_control.errors import NotFound, QuotaExceeded
from tests.helpers.refusals import NO_QUEUE, OTHER_QUEUE, Q, Refusal, check_refused, prepare, refusal

REFUSED = [refusal(NotFound, NO_QUEUE, "synchronize", 9), refusal(NotFound, NO_QUEUE, "set_queue_priority", 9, 1)]


@pytest.mark.parametrize("wanted", REFUSED)
def test_a_refused_call_names_the_number_and_changes_nothing(wanted: Refusal) -> None:
    check_refused(wanted)


def test_queues_that_do_not_exist_or_are_too_many_are_refused() -> None:
    inferlet, handed_on = prepare()
    before = inferlet.space.usage(), len(handed_on)
    with pytest.raises(NotFound, match=NO_QUEUE):
        inferlet.destroy_queue(9)
    with pytest.raises(QuotaExceeded, match="2 queues held and 1 more asked for, the limit is 2"):
        inferlet.create_queue()
    assert (inferlet.space.usage(), len(handed_on)) == before


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("synchronize", ()),
        ("alloc", ("emb", 1)),
        ("embed_txt", ([65], [0], [4, 1])),
        ("forward", ([], [0, 1], [], [])),
        ("copy_kvpage", ([0, 1], [8, 1])),
        ("get_logprobs", (0, [1])),
    ],
)
def test_commands_that_wait_are_limited(call: str, arguments: tuple[object, ...]) -> None:
    inferlet, handed_on = prepare()
    while inferlet.space.waiting < 20:
        inferlet.call("synchronize", Q)
    before = len(handed_on)
    with pytest.raises(QuotaExceeded, match="20 waiting commands held and 1 more asked for, the limit is 20; wait"):
        inferlet.call(call, OTHER_QUEUE, *arguments)
    assert len(handed_on) == before


def test_synchronize_is_a_command_of_its_queue() -> None:
    inferlet, handed_on = prepare()
    future = inferlet.call("synchronize", Q)
    assert isinstance(handed_on[-1], Barrier)
    assert (handed_on[-1].queue, handed_on[-1].future) == (Q, future)


def test_a_priority_is_told_at_once() -> None:
    inferlet, handed_on = prepare()
    inferlet.call("set_queue_priority", Q, -3)
    assert handed_on[-1] == Prioritize(7, Q, -3)
    assert inferlet.space.waiting == 5
