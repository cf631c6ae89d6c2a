"""Topics on one host: queues, bounds, and what is confirmed when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pie_control.errors import CallError, Cancelled, InvalidArgument, NotFound, QuotaExceeded
from pie_control.inferlets.mailbox import EVENT_BYTES
from pie_control.inferlets.relations import topics as relations_topics
from pie_control.inferlets.relations.mail import Letter
from pie_control.inferlets.relations.topics import (
    MOST_LEFT,
    MOST_MESSAGE,
    MOST_SUBSCRIPTIONS,
    MOST_UNDER_WAY,
    MOST_WAITING,
    Topics,
)
from pie_control.inferlets.waiting.waits import Waits
from tests.helpers.guard import HANG_SECONDS


class Owner(Waits):
    """An inferlet, as far as its futures go."""

    def __init__(self) -> None:
        self.pending: dict[int, Callable[[], None]] = {}
        self.values: dict[int, Any] = {}
        self.last = 0

    def begin(self, future: int, stop: Callable[[], None], what: str) -> None:
        self.pending[future] = stop

    def conclude(self, future: int, value: Any, size: int = 0) -> None:
        del self.pending[future]
        self.values[future] = value

    def withdraw(self, future: int, error: CallError) -> None:
        self.values[future] = error

    def new(self) -> int:
        self.last += 1
        return self.last

    def cancel(self, future: int) -> None:
        if future in self.pending:
            self.pending.pop(future)()
        else:
            self.values.pop(future).not_taken()

    def texts(self) -> list[str]:
        return [value.message.text for value in self.values.values() if isinstance(value, Letter) and value.message]


class Wire:
    def __init__(self) -> None:
        self.said: list[Any] = []
        self.confirmed: list[int] = []

    def subscribes(self, number: int, topic: str, on: bool) -> None:
        self.said.append((number, topic, on))

    def broadcasts(self, number: int, future: int, topic: str, text: str) -> None:
        self.said.append((number, future, topic, len(text)))

    def confirms(self, broadcast: int) -> None:
        self.confirmed.append(broadcast)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def topics(wire: Wire) -> Topics:
    return Topics(wire)


def test_what_comes_before_it_is_asked_for_is_kept_in_order(topics: Topics, wire: Wire) -> None:
    owner = Owner()
    queue = topics.subscribe(owner, 7, "t")
    for number in range(3):
        topics.published(number, "i1", "t", str(number), [7])
    for future in range(10, 15):
        queue.receive(future)
    assert owner.texts() == ["0", "1", "2"]
    assert sorted(owner.pending) == [13, 14]
    topics.published(3, "i1", "t", "3", [7])
    assert owner.texts()[-1] == "3"
    assert wire.confirmed == [0, 1, 2, 3]


def test_a_future_that_is_given_up_leaves_its_message(topics: Topics) -> None:
    owner = Owner()
    queue = topics.subscribe(owner, 7, "t")
    for future in (1, 2, 3):
        queue.receive(future)
    owner.cancel(1)
    topics.published(1, "i1", "t", "first", [7])
    topics.published(2, "i1", "t", "second", [7])
    owner.cancel(2)
    queue.receive(4)
    assert (owner.values[4].message.text, owner.values[3].message.text) == ("first", "second")


def test_a_full_queue_confirms_when_it_has_room(topics: Topics, wire: Wire) -> None:
    slow, fast = Owner(), Owner()
    queue, other = topics.subscribe(slow, 7, "t"), topics.subscribe(fast, 8, "t")
    count = MOST_WAITING // MOST_MESSAGE + 2
    for number in range(count):
        topics.published(number, "i1", "t", "x" * MOST_MESSAGE, [7, 8])
        other.receive(number)
        fast.values[number].taken()
    late = [number for number in range(count) if number not in wire.confirmed]
    assert late == [count - 3, count - 2, count - 1]
    assert not fast.pending
    future = count
    while len(wire.confirmed) < count:
        assert queue.is_full
        queue.receive(future)
        slow.values[future].taken()
        future += 1
    assert sorted(wire.confirmed) == list(range(count))
    assert not queue.is_full


@pytest.mark.parametrize("how", ["unsubscribe", "end"])
def test_a_full_queue_that_is_dropped_holds_up_nobody(topics: Topics, wire: Wire, how: str) -> None:
    owner = Owner()
    queue = topics.subscribe(owner, 7, "t")
    for number in range(8):
        topics.published(number, "i1", "t", "x" * MOST_MESSAGE, [7])
    assert len(wire.confirmed) < 8
    if how == "end":
        topics.ended(7, "a")
        topics.ended(7, "a")
    else:
        topics.unsubscribe(queue)
    assert sorted(wire.confirmed) == list(range(8))


def test_who_waits_for_a_queue_that_is_dropped_hears_of_it(topics: Topics, wire: Wire) -> None:
    owner = Owner()
    queue = topics.subscribe(owner, 7, "t")
    queue.receive(1)
    topics.unsubscribe(queue)
    assert isinstance(owner.values[1], Cancelled)
    with pytest.raises(NotFound, match="closed before"):
        topics.unsubscribe(queue)
    topics.published(1, "i1", "t", "late", [7])  # was under way
    assert wire.confirmed == [1]


def test_two_queues_of_one_topic_are_one_to_control(topics: Topics, wire: Wire) -> None:
    owner = Owner()
    first, second = topics.subscribe(owner, 7, "t"), topics.subscribe(owner, 7, "t")
    topics.published(1, "i1", "t", "x", [7])
    first.receive(1)
    second.receive(2)
    assert owner.texts() == ["x", "x"]
    topics.unsubscribe(first)
    topics.unsubscribe(second)
    assert wire.said == [(7, "t", True), (7, "t", False)]


class Compared(int):
    """A number that counts how often one like it is compared."""

    count = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int.__eq__(self, other)


def test_an_end_looks_at_no_subscription_of_others(topics: Topics) -> None:
    for number in range(1000):
        topics.subscribe(Owner(), Compared(number), "t")
    Compared.count = 0
    topics.ended(7, "a")
    assert Compared.count < 10


def test_names_messages_and_subscriptions_are_bounded(topics: Topics) -> None:
    owner = Owner()
    for name in ("", "x" * 257, "世" * 90):
        with pytest.raises(InvalidArgument, match="1 to 256 bytes"):
            topics.subscribe(owner, 7, name)
        with pytest.raises(InvalidArgument, match="1 to 256 bytes"):
            topics.broadcast(7, "a", name, "x", owner.new)
    with pytest.raises(QuotaExceeded, match="send it in pieces"):
        topics.broadcast(7, "a", "t", "x" * (MOST_MESSAGE + 1), owner.new)
    queues = [topics.subscribe(owner, 7, f"t{number}") for number in range(MOST_SUBSCRIPTIONS)]
    with pytest.raises(QuotaExceeded, match="unsubscribe from some first"):
        topics.subscribe(owner, 7, "t")
    topics.subscribe(owner, 8, "t")
    topics.unsubscribe(queues[0])
    topics.subscribe(owner, 7, "t")
    assert owner.last == 0, "a refused call leaves no future"


def test_what_is_not_confirmed_is_bounded(topics: Topics, wire: Wire) -> None:
    owner = Owner()
    topics.broadcast(7, "a", "t", "x" * MOST_MESSAGE, owner.new)
    with pytest.raises(QuotaExceeded, match="await the futures"):
        topics.broadcast(7, "a", "t", "x", owner.new)
    topics.broadcast(8, "a", "t", "x", owner.new)  # another inferlet
    topics.confirmed(7, 1)
    topics.broadcast(7, "a", "t", "x", owner.new)
    assert [said[:2] for said in wire.said] == [(7, 1), (8, 2), (7, 3)]
    topics.confirmed(9, 1)


def test_what_inferlets_have_left_unconfirmed_counts_for_their_tenant(topics: Topics) -> None:
    owner = Owner()
    left = []
    for number in range(MOST_LEFT // MOST_MESSAGE):
        left.append((number, topics.broadcast(number, "a", "t", "x" * MOST_MESSAGE, owner.new)))
        topics.ended(number, "a")
    with pytest.raises(QuotaExceeded, match="of inferlets that have ended"):
        topics.broadcast(2000, "a", "t", "x", owner.new)
    topics.broadcast(2000, "b", "t", "x", owner.new)  # of another tenant
    for number, future in left:
        topics.confirmed(number, future)
        topics.confirmed(number, future)
    topics.broadcast(2001, "a", "t", "x", owner.new)


def test_what_futures_hold_counts_until_it_is_taken(topics: Topics, wire: Wire) -> None:
    owner = Owner()
    queue = topics.subscribe(owner, 7, "t")
    for future in range(8):
        queue.receive(future)
        topics.published(future, "i1", "t", "x" * MOST_MESSAGE, [7])
    assert not owner.pending
    assert len(wire.confirmed) < 8
    topics.unsubscribe(queue)
    assert sorted(wire.confirmed) == list(range(8))
    assert all(isinstance(value, Cancelled) for value in owner.values.values()), "what was not taken is dropped"


def test_the_queues_of_an_inferlet_share_their_room(topics: Topics, wire: Wire) -> None:
    owner = Owner()
    queues = [topics.subscribe(owner, 7, "t") for _ in range(4)]
    count = 0
    while len(wire.confirmed) == count:
        topics.published(count, "i1", "t", "x" * 10_000, [7])
        count += 1
    assert MOST_WAITING < len(queues) * count * (10_000 + EVENT_BYTES) < MOST_WAITING + 50_000


def test_few_broadcasts_are_under_way_however_short_they_are(topics: Topics) -> None:
    owner = Owner()
    for _ in range(MOST_UNDER_WAY):
        topics.broadcast(7, "a", "t", "", owner.new)
    with pytest.raises(QuotaExceeded, match="await the futures"):
        topics.broadcast(7, "a", "t", "", owner.new)


def test_broadcasts_to_many_join_their_queues_turn_by_turn(
    topics: Topics, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relations_topics, "PUTS_IN_A_TURN", 10)
    topics._puts = 10

    async def test() -> None:
        owners = [Owner() for _ in range(30)]
        for number, owner in enumerate(owners):
            for future in range(2):
                topics.subscribe(owner, number, "t").receive(future)
                topics.subscribe(owner, number, "t").receive(2 + future)
        for broadcast in range(3):
            topics.published(broadcast, "i1", "t", str(broadcast), range(30))
        assert sum(bool(owner.values) for owner in owners) <= 3
        assert wire.confirmed == []
        topics.ended(29, "a")  # meanwhile
        while len(wire.confirmed) < 3:
            await asyncio.sleep(0)
        assert wire.confirmed == [0, 1, 2]
        assert [owner.texts() for owner in owners] == [["0"] * 4] * 29 + [[]]

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))
