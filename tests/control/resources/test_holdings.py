from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.resources import holdings as module
from pie_control.resources.holdings import UNBOUND, Binding, Freed, Holdings, Returns, TokenSource
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.resources.ranges import Range


def test_addresses_are_bound_and_unbound() -> None:
    binding = Binding()
    binding.bind(2, [7, 8, 9])
    assert binding.physical.tolist() == [UNBOUND, UNBOUND, 7, 8, 9]
    assert binding.bound == 3
    assert binding.unbind([(3, 4), (4, 5)]) == [8, 9]
    binding.bind(3, [5])
    assert binding.physical.tolist() == [UNBOUND, UNBOUND, 7, 5, UNBOUND]
    assert binding.unbind_all() == [7, 5]
    assert binding.bound == 0
    assert binding.unbind_all() == []


def test_what_was_never_bound_gives_nothing_back() -> None:
    binding = Binding()
    binding.bind(0, [4])
    assert binding.unbind([(0, 3), (10, 12)]) == [4]
    assert binding.physical.tolist() == [UNBOUND]


def test_a_token_is_named_by_its_slot_until_its_value_is_known() -> None:
    holdings = Holdings(1, 0.0, Returns(4))
    source = holdings.tokens[7] = TokenSource(1)
    with pytest.raises(AssertionError, match="ran ahead"):
        source.literal()
    source.slot = 3
    assert holdings.literals([5, 0, 6], [(1, 7)]).tolist() == [5, -4, 6]
    source.value = 65
    assert holdings.literals([5, 0, 6], [(1, 7)]).tolist() == [5, 65, 6]


@dataclass
class Used:
    """A command that waits, and the pages that it uses."""

    seq: int
    pages: Sequence[Range] = ()
    after: int = 0
    call: object = "forward"
    lasts: bool = False
    asked: int = 0

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        self.asked += 1
        return self.pages if resource is PAGES else ()


def seqs(freed: list[Freed]) -> list[int]:
    return [one.seq for one in freed]


def test_what_no_waiting_command_uses_comes_back_at_once() -> None:
    queue = deque([Used(1, [(0, 4)]), Used(2, [(6, 9)])])
    returns = Returns(4)
    returns.add(Freed(3, PAGES, ((4, 6), (9, 12))), [queue])
    returns.add(Freed(4, EMBEDS, ((0, 9),)), [queue])
    assert seqs(returns.take(0, 0)) == [3, 4]
    assert not returns


def test_what_is_used_comes_back_when_the_newest_user_of_each_queue_has_left() -> None:
    one, two = deque([Used(1, [(0, 1)]), Used(4)]), deque([Used(2, [(5, 6)]), Used(3, [(0, 2)]), Used(5)])
    returns = Returns(4)
    returns.add(Freed(6, PAGES, ((0, 1),)), [one, two])
    returns.add(Freed(7, PAGES, ((5, 6),)), [one, two])
    assert seqs(returns.take(0, 0)) == []
    two.popleft()
    assert seqs(returns.take(0, 0)) == [7]
    two.popleft()
    assert seqs(returns.take(0, 0)) == []
    assert returns
    one.popleft()
    assert seqs(returns.take(0, 0)) == [6]


def test_the_search_for_users_is_bounded_and_what_is_not_looked_at_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_LOOKS", 10)
    queue = deque(Used(seq) for seq in range(1, 101))
    returns = Returns(4)
    for seq in range(101, 201):
        returns.add(Freed(seq, PAGES, ((seq, seq + 1),)), [queue])
    assert sum(one.asked for one in queue) == 10
    assert (seqs(returns.take(0, 1)), returns.count(PAGES)) == ([], 100)
    for _ in range(100):
        queue.popleft()
    assert seqs(returns.take(1, 151)) == [*range(101, 151)], "what waits for all before it"
    returns.add(Freed(201, PAGES, ((7, 8),)), [queue])
    assert seqs(returns.take(1, 151)) == [201], "the next wave may look again"
    returns.leaves(queue, line := deque([Used(160)]))
    assert seqs(returns.take(1, 301)) == [*range(151, 160)], "a command that lasts is one of these"
    line.clear()
    assert seqs(returns.take(1, 301)) == [*range(160, 201)]
    assert not returns


def test_beyond_the_bound_nothing_is_looked_at_or_kept_for_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LOOKS", 10)
    queues, returns, visited = [deque([Used(seq)]) for seq in range(1, 101)], Returns(4), list[int]()

    def visits(queues: list[deque[Used]]) -> Iterator[deque[Used]]:
        for queue in queues:
            visited.append(queue[0].seq)
            yield queue

    for seq in range(101, 201):
        returns.add(Freed(seq, PAGES, ((seq, seq + 1),)), visits(queues))
    assert len(visited) == 10 + 100


def test_what_comes_back_behind_an_allocation_without_room_is_not_relied_on() -> None:
    one = deque([Used(1, call=None), Used(5, [(0, 1)])])  # an allocation stands before the user
    two = deque([Used(2, [(1, 3)]), Used(6, [(3, 7)], after=1)])  # the second waits for the allocation
    returns = Returns(4)
    for seq, pages in ((7, (0, 1)), (8, (1, 3)), (9, (3, 7))):
        returns.add(Freed(seq, PAGES, (pages,)), [one, two])
    assert (returns.count(PAGES), returns.count(PAGES, blocked=1), returns.count(EMBEDS)) == (7, 2, 0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=3)), max_size=12),
    st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=6),
    st.sampled_from([0, 5, 1000]),
    st.randoms(),
)
def test_nothing_comes_back_while_it_is_used_and_everything_afterwards(
    commands: list[tuple[int, list[int]]], freed: list[set[int]], looks: int, order: Random
) -> None:
    queues: list[deque[Used]] = [deque(), deque(), deque()]
    for seq, (place, used_pages) in enumerate(commands, start=1):
        queues[place].append(Used(seq, [(page, page + 1) for page in used_pages]))
    returns = Returns(4)
    returns._looks = looks
    wanted = dict(enumerate(freed, start=100))
    for number, pages in wanted.items():
        returns.add(Freed(number, PAGES, tuple((page, page + 1) for page in pages)), queues)
    while True:
        used = {page for queue in queues for one in queue for page, _ in one.pages}
        oldest = min((queue[0].seq for queue in queues if queue), default=1000)
        for number in seqs(returns.take(-1, oldest)):
            assert used.isdisjoint(wanted.pop(number)), "it came back while a command used it"
        if looks == 1000:
            assert all(used & pages for pages in wanted.values()), "it is held though nobody uses it"
        left = [queue for queue in queues if queue]
        if not left:
            break
        order.choice(left).popleft()
    assert not wanted
    assert not returns
