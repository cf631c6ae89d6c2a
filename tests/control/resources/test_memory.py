"""Binding, giving back, and who is asked when there is too little."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pie_control.calls.kind import Bind
from pie_control.ids import Owner
from pie_control.resources.contention import Action, End, FirstComeFirstServed, Holder, Shortage, Wait
from pie_control.resources.holdings import Freed, Holdings
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.resources.memory import Memory
from tests.helpers.scheduling import describe


class Recorder:
    """A policy that notes what it sees, and answers with actions that were prepared."""

    def __init__(self, *answers: Action) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[Shortage, dict[Owner, Holder]]] = []

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        self.seen.append((shortage, {holder.owner: holder for holder in holders}))
        return (self.answers.pop(0),) if self.answers else (Wait(),)


def make_memory(policy: Recorder | None = None) -> Memory:
    """16 pages and 10 embeds."""
    model = describe(num_pages=16 + 16, num_embeds=10, max_batch_tokens=64)
    return Memory(model, policy or FirstComeFirstServed())


def bind(
    memory: Memory,
    holdings: Holdings,
    count: int,
    resource: Resource = PAGES,
    now: float = 0.0,
    first: int | None = None,
) -> bool:
    if first is None:
        first = len(holdings.binding(resource).physical)
    return memory.try_bind(holdings, Bind(holdings.owner, 1, first, 0, None, (), resource, first, count), now)


def free(holdings: Holdings, seq: int, first: int, last: int) -> None:
    holdings.freed.append(Freed(seq, PAGES, ((first, last),)))


def test_a_pool_smaller_than_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="16 pages do not hold one batch of 64 tokens; more than 16 pages"):
        Memory(describe(num_pages=16), FirstComeFirstServed())


def test_memory_is_bound_as_long_as_there_is_some() -> None:
    memory = make_memory()
    one = memory.open(1, 0.0)
    memory.begin()
    assert bind(memory, one, 16)
    assert not bind(memory, one, 1)
    assert bind(memory, one, 10, EMBEDS)
    assert not bind(memory, one, 1, EMBEDS)
    memory.check_integrity()


def test_what_is_given_back_waits_for_the_wave_that_may_touch_it() -> None:
    memory = make_memory()
    one = memory.open(1, 0.0)
    memory.begin()
    assert bind(memory, one, 16)
    memory.wave_sent()  # wave 0
    free(one, 4, 0, 10)
    memory.run_frees(one, 4)
    assert memory.usage()[PAGES].quarantined == 0, "command 4 may still touch them"
    memory.run_frees(one, 5)
    assert memory.usage()[PAGES].quarantined == 10
    memory.wave_completed(0)
    assert memory.usage()[PAGES].free == 10
    memory.check_integrity()


def test_what_is_given_back_while_nothing_is_in_flight_is_free_at_once() -> None:
    memory = make_memory()
    one = memory.open(1, 0.0)
    memory.begin()
    assert bind(memory, one, 16)
    memory.all_completed()
    memory.close(1)
    assert memory.usage()[PAGES].free == 16


def test_nobody_is_asked_if_enough_is_coming_back() -> None:
    policy = Recorder()
    memory = make_memory(policy)
    one, two = memory.open(1, 0.0), memory.open(2, 1.0)
    memory.begin()
    assert bind(memory, one, 16)
    free(one, 4, 0, 3)  # waits for command 4
    assert not bind(memory, two, 3)
    assert list(memory.resolve_shortages()) == []
    assert not policy.seen


def test_a_policy_sees_who_holds_what_and_who_waits_since_when() -> None:
    policy = Recorder(Wait(), Wait(), Wait())
    memory = make_memory(policy)
    one, two, three = (memory.open(owner, float(owner)) for owner in (1, 2, 3))
    memory.begin()
    assert bind(memory, one, 9)
    assert bind(memory, two, 6)
    assert bind(memory, three, 9, EMBEDS)
    for now in (10.0, 11.0):
        memory.begin()
        assert not bind(memory, two, 4, now=now)
        if now == 11.0:
            assert not bind(memory, three, 5, now=now)
            assert not bind(memory, one, 2, EMBEDS, now)
        assert set(memory.resolve_shortages()) == {Wait()}
    assert [shortage for shortage, _ in policy.seen] == [
        Shortage(2, PAGES, 4, 3, 16),
        Shortage(2, PAGES, 4, 3, 16),
        Shortage(3, PAGES, 5, 8, 16),  # after those that wait before it
        Shortage(1, EMBEDS, 2, 1, 10),
    ]
    _, pages = policy.seen[2]
    assert pages == {1: Holder(1, 1.0, 9), 2: Holder(2, 2.0, 6, 4, 10.0), 3: Holder(3, 3.0, 0, 5, 11.0)}
    _, embeds = policy.seen[3]
    assert embeds == {1: Holder(1, 1.0, 0, 2, 11.0), 2: Holder(2, 2.0, 0), 3: Holder(3, 3.0, 9)}


def test_requests_of_several_queues_are_counted_together() -> None:
    policy = Recorder()
    memory = make_memory(policy)
    one, two = memory.open(1, 1.0), memory.open(2, 2.0)
    memory.begin()
    assert bind(memory, one, 16)
    for now in (10.0, 11.0, 12.0):
        memory.begin()
        if now < 12.0:
            assert not bind(memory, two, 3, now=now, first=0)
        if now > 10.0:
            assert not bind(memory, two, 4, now=now, first=3)
        assert set(memory.resolve_shortages()) == {Wait()}
    waiting = [(holders[2].waits_for, holders[2].waits_since) for _, holders in policy.seen]
    assert waiting == [(3, 10.0), *[(7, 10.0)] * 4], "a request waits until it is granted"


def test_who_was_ended_for_an_earlier_request_is_not_asked_for() -> None:
    policy = Recorder(End(2, "make room"))
    memory = make_memory(policy)
    one, two = memory.open(1, 0.0), memory.open(2, 1.0)
    memory.begin()
    assert bind(memory, two, 14)
    assert not bind(memory, one, 4)
    assert not bind(memory, two, 4)
    for action in memory.resolve_shortages():
        assert action == End(2, "make room")
        memory.close(2)
    assert len(policy.seen) == 1
    memory.all_completed()
    memory.begin()
    assert bind(memory, one, 4)


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    memory = make_memory(Recorder())
    one, two = memory.open(1, 0.0), memory.open(2, 1.0)
    memory.begin()
    assert bind(memory, one, 10)
    assert not bind(memory, one, 8)
    assert not bind(memory, two, 1)
