"""Binding, giving back, and who is asked when there is too little."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.calls.kind import Bind, Command
from pie_control.ids import Owner
from pie_control.resources.contention import Action, End, FirstComeFirstServed, Holder, Shortage
from pie_control.resources.exports.export import Export
from pie_control.resources.holdings import Block, Freed, Holdings
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.resources.memory import Memory
from pie_control.tenants.tenant import ServiceClass, Standing, Tenant
from tests.helpers.integrity import check_memory
from tests.helpers.scheduling import describe

SEQUENCE = count(1)
BATCH = Standing(service_class=ServiceClass.BATCH)


class Recorder:
    """A policy that notes what it sees, and answers with actions that were prepared."""

    def __init__(self, *answers: Action) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[Shortage, dict[Owner, Holder]]] = []

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        self.seen.append((shortage, {holder.owner: holder for holder in holders}))
        return (self.answers.pop(0),) if self.answers else ()


def make_memory(policy: Recorder | None = None) -> Memory:
    """16 pages and 10 embeds."""
    model = describe(num_pages=16 + 16, num_embeds=10, max_batch_tokens=64)
    return Memory(model, policy or FirstComeFirstServed())


def bind(
    memory: Memory,
    holdings: Holdings,
    count: int,
    resource: Resource = PAGES,
    seq: int | None = None,
) -> bool:
    """A new allocation behind those that are bound, or the one with this number again."""
    first = len(holdings.binding(resource).physical)
    seq = next(SEQUENCE) if seq is None else seq
    return memory.try_bind(holdings, seq, resource, first, count)


def ask(memory: Memory, holdings: Holdings, command: Bind) -> bool:
    return memory.try_bind(holdings, command.seq, command.resource, command.first, command.count)


def free(holdings: Holdings, seq: int, first: int, last: int, waiting: deque[Any] | None = None) -> None:
    """Pages are given back; `waiting` are the commands of the inferlet that wait."""
    holdings.freed.add(Freed(seq, PAGES, ((first, last),)), [deque() if waiting is None else waiting])


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
    check_memory(memory)


def test_pages_that_only_exports_hold_are_spare() -> None:
    memory = make_memory()
    one = memory.open(1, 0.0)
    memory.begin()
    assert bind(memory, one, 12)
    assert memory.has_spare_pages(0.25)
    assert bind(memory, one, 4)
    assert not memory.has_spare_pages(0.25)
    export = Export(Standing(Tenant("a")), "beginning", 1, 1)
    memory.exports.announce(export)
    memory.exports.hold(export, Block(one.pages.physical[:4]))
    assert not memory.has_spare_pages(0.25)
    memory.close(1)
    assert memory.has_spare_pages(1.0)


def test_what_is_given_back_waits_for_the_wave_that_may_touch_it() -> None:
    memory = make_memory()
    one = memory.open(1, 0.0)
    memory.begin()
    assert bind(memory, one, 16)
    memory.wave_sent()  # wave 0
    waiting: deque[Any] = deque([Command(1, 1, 3, 0, None, ())])
    free(one, 4, 0, 10, waiting)
    assert memory.run_frees(one, 3) == []
    assert memory.usage()[PAGES].quarantined == 0, "command 3 may still touch them"
    waiting.clear()
    assert memory.run_frees(one, 5) == [4]
    assert memory.usage()[PAGES].quarantined == 10
    memory.wave_completed(0)
    assert memory.usage()[PAGES].free == 10
    check_memory(memory)


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
    free(one, 4, 0, 3, deque([Command(1, 1, 3, 0, None, ())]))
    assert not bind(memory, two, 3)
    assert list(memory.resolve_shortages()) == []
    assert not policy.seen


def test_what_comes_back_only_behind_a_request_is_not_relied_on() -> None:
    policy = Recorder()
    memory = make_memory(policy)
    one = memory.open(1, 0.0)
    memory.begin()
    assert bind(memory, one, 16)
    request = Bind(1, 1, 1000, 0, None, (), PAGES, 16, 2)
    assert not ask(memory, one, request)
    free(one, 1002, 0, 3, deque([request, Command(1, 1, 1001, 0, None, ())]))
    assert not list(memory.resolve_shortages())
    ((shortage, holders),) = policy.seen
    assert (shortage.missing, holders[1].held) == (2, 16)


def test_a_policy_sees_who_holds_what() -> None:
    policy = Recorder()
    memory = make_memory(policy)
    one, two, three = memory.open(1, 1.0), memory.open(2, 2.0), memory.open(3, 3.0, BATCH)
    memory.begin()
    assert bind(memory, one, 9)
    assert bind(memory, two, 6)
    assert bind(memory, three, 9, EMBEDS)
    for first in (True, False):
        memory.begin()
        if first:
            assert not bind(memory, two, 4)
        else:
            assert not bind(memory, three, 5)
            assert not bind(memory, one, 2, EMBEDS)
        assert not list(memory.resolve_shortages())
    assert [shortage for shortage, _ in policy.seen] == [
        Shortage(2, PAGES, 4, 3, 16),
        Shortage(2, PAGES, 4, 3, 16),  # somebody else asks, too
        Shortage(1, EMBEDS, 2, 1, 10),
    ]
    _, pages = policy.seen[1]
    assert pages == {1: Holder(1, 1.0, 9), 2: Holder(2, 2.0, 6), 3: Holder(3, 3.0, 0, BATCH)}
    _, embeds = policy.seen[2]
    assert embeds == {1: Holder(1, 1.0, 0), 2: Holder(2, 2.0, 0), 3: Holder(3, 3.0, 9, standing=BATCH)}


def test_a_policy_is_asked_again_only_when_something_has_changed() -> None:
    policy = Recorder()
    memory = make_memory(policy)
    holders = [memory.open(owner, float(owner)) for owner in range(1000)]
    memory.begin()
    assert bind(memory, holders[0], 16)
    for holdings in holders[1:]:
        assert not bind(memory, holdings, 4)
    asked = []
    for change in (None, None, lambda: bind(memory, holders[0], 1, EMBEDS), None, lambda: memory.close(999), None):
        if change:
            change()
        memory.begin()
        assert not list(memory.resolve_shortages())
        memory.wave_sent()
        asked.append(len(policy.seen))
    assert asked == [1, 1, 1, 1, 2, 2], "once for 999 requests, and once when one of them is gone"


def test_who_was_ended_for_an_earlier_request_is_not_asked_for() -> None:
    policy = Recorder(End(2, "make room"))
    memory = make_memory(policy)
    one, two = memory.open(1, 0.0), memory.open(2, 1.0)
    memory.begin()
    assert bind(memory, two, 14)
    assert not bind(memory, one, 4, seq=1)
    assert not bind(memory, two, 4)
    for action in memory.resolve_shortages():
        assert action == End(2, "make room")
        memory.close(2)
    assert len(policy.seen) == 1
    memory.all_completed()
    memory.begin()
    assert bind(memory, one, 4, seq=1)
    check_memory(memory)


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    memory = make_memory(Recorder())
    one, two = memory.open(1, 0.0), memory.open(2, 1.0)
    memory.begin()
    assert bind(memory, one, 10)
    assert not bind(memory, one, 8)
    assert not bind(memory, two, 1)


def test_the_line_goes_by_class_and_age_and_tells_who_was_served() -> None:
    memory = make_memory(Recorder())
    holder, batch, young, old = (
        memory.open(owner, created, standing)
        for owner, created, standing in ((1, 0.0, BATCH), (2, 1.0, BATCH), (3, 3.0, Standing()), (4, 2.0, Standing()))
    )
    memory.begin()
    assert bind(memory, holder, 16)
    commands = {one.owner: Bind(one.owner, 1, 500 + one.owner, 0, None, (), PAGES, 0, 5) for one in (batch, young, old)}
    for one in (batch, young, old):
        assert not ask(memory, one, commands[one.owner])
    free(holder, 1000, 0, 11)
    memory.run_frees(holder, 0)
    assert memory.begin() == [], "what is given back is in quarantine"
    memory.all_completed()
    assert memory.begin() == [(4, 504), (3, 503)]
    assert not ask(memory, batch, commands[2])
    assert not bind(memory, batch, 1, seq=600), "1 is free, but another stands before it"
    check_memory(memory)
    assert ask(memory, old, commands[4])
    assert (old.pages.bound, young.pages.bound) == (5, 5)
    memory.close(3)  # before its command was told
    check_memory(memory)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 9)), max_size=60))
def test_pools_and_lines_agree_whatever_happens(actions: list[tuple[int, int, int]]) -> None:
    """Random allocations, frees, ends, and waves, first come, first served: whoever waits is served in the end."""
    memory = make_memory()
    standings = [Standing(), BATCH]
    waiting: dict[Owner, deque[Any]] = {}
    for number, (action, owner, size) in enumerate(actions, start=1):
        if owner not in memory._holdings:
            memory.open(owner, float(owner), standings[owner % 2])
            waiting[owner] = deque()
        holdings = memory._holdings[owner]
        match action:
            case 0 | 1:
                resource = (PAGES, EMBEDS)[action]
                last = max((one.first + one.count for one in waiting[owner] if one.resource is resource), default=0)
                first = max(last, len(holdings.binding(resource).physical))
                waiting[owner].append(Bind(owner, 1, number, 0, None, (), resource, first, size))
            case 2:
                first = len(holdings.pages.physical) - size
                if first >= 0:
                    holdings.freed.add(Freed(number, PAGES, ((first, first + size),)), [waiting[owner]])
            case 3:
                memory.close(owner)
                del waiting[owner]
            case _:
                _form_wave(memory, waiting, in_flight=action == 4)
        check_memory(memory)
    for _ in range(100):
        _form_wave(memory, waiting, in_flight=False)
        check_memory(memory)
    assert not any(queue for owner, queue in waiting.items() if not _waits_for_a_higher_class(memory, owner))


def _form_wave(memory: Memory, waiting: dict[Owner, deque[Any]], in_flight: bool) -> None:
    memory.begin()
    for owner, queue in waiting.items():
        while queue and ask(memory, memory._holdings[owner], queue[0]):
            queue.popleft()
        memory.run_frees(memory._holdings[owner], 0)
    for action in memory.resolve_shortages():
        if isinstance(action, End) and action.owner in waiting:
            memory.close(action.owner)
            del waiting[action.owner]
    if in_flight:
        memory.wave_sent()
    else:
        memory.all_completed()


def _waits_for_a_higher_class(memory: Memory, owner: Owner) -> bool:
    """A batch job may wait for what interactive inferlets hold."""
    interactive = (one for one in memory._holdings.values() if one.standing != BATCH)
    return memory._holdings[owner].standing == BATCH and any(one.pages.bound or one.embeds.bound for one in interactive)


@pytest.mark.parametrize("seed", range(20))
def test_what_does_not_come_back_is_what_is_pinned_or_held_by_one_that_yields_later(seed: int) -> None:
    choice = Random(seed)
    memory = Memory(describe(num_pages=100), FirstComeFirstServed())
    total, holdings = memory.pools[PAGES].total, list[Holdings]()
    for owner in range(1, choice.randint(1, 9)):
        standing = Standing(Tenant("t"), choice.choice([*ServiceClass]))
        holdings.append(memory.open(owner, float(choice.randint(0, 3)), standing))
        pages = choice.sample(range(total), choice.randint(0, 20))
        for place, page in enumerate(pages):
            holdings[-1].pages.bind(2 * place, [page])
    pinned = choice.sample(range(total), choice.randint(0, 9))
    kept, expected = set(pinned), dict[Owner, int]()
    for one in sorted(holdings, key=lambda one: one.rank(0)):
        held = [page for page in one.pages.physical if page >= 0]
        expected[one.owner] = sum(page in kept for page in held)
        kept.update(held)
    assert memory._held_by_others(PAGES, pinned) == expected
