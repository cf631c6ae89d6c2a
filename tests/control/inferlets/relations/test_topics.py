"""Topics on one host: queues, bounds, and what is confirmed when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pie_control.errors import Cancelled, InvalidArgument, NotFound, QuotaExceeded
from pie_control.inferlets.relations.mail import Letter
from pie_control.inferlets.relations.topics import MOST_LEFT, MOST_MESSAGE, MOST_SUBSCRIPTIONS, MOST_WAITING, Topics
from pie_control.inferlets.waiting.waits import Waits


class Owner(Waits):
    """An inferlet, as far as its futures go."""

    def __init__(self) -> None:
        self.pending: dict[int, Callable[[], None]] = {}
        self.values: dict[int, Any] = {}
        self.last = 0

    def begin(self, future: int, stop: Callable[[], None], what: str) -> None:
        self.pending[future] = stop

    def conclude(self, future: int, value: Any) -> None:
        del self.pending[future]
        self.values[future] = value

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
    late = [number for number in range(count) if number not in wire.confirmed]
    assert late == [count - 3, count - 2, count - 1]
    assert not fast.pending
    future = count
    while len(wire.confirmed) < count:
        assert queue.is_full
        queue.receive(future)
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
