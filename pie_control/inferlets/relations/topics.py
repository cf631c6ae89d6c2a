"""Topics on one host: what its inferlets have subscribed to, and what they broadcast.

Theory of operation. A broadcast goes to the control process, which passes it on to every host with subscribers, in one
order for all. There it joins the queue of each subscription at once, and the host confirms it, unless one of these
queues is full: then as soon as each has room again. When all hosts have confirmed, the future of the publisher is done.
So nothing is lost, memory is bounded, and who awaits its broadcasts goes as fast as the slowest subscriber. (To drop
the oldest messages of a slow subscriber instead would never make anybody wait; but agents that miss a message of
others go wrong in silence, and a program that prefers it can receive all the time and drop them itself.)
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from ...errors import Cancelled, InvalidArgument, NotFound, QuotaExceeded
from ...texts import byte_size
from ..mailbox import EVENT_BYTES, Received
from ..waiting.waits import Waits
from .mail import Mailbox, Source

MOST_NAME = 256
"""Bytes of the name of a topic."""
MOST_MESSAGE = 1 << 18
"""Bytes of a message."""
MOST_SUBSCRIPTIONS = 64
"""Most subscriptions of one inferlet."""
MOST_WAITING = 1 << 20
"""Bytes in the queues of an inferlet's subscriptions, equal parts in each, above which publishers wait."""
MOST_UNDER_WAY = 256
"""Broadcasts of one inferlet that were not confirmed."""
PUTS_IN_A_TURN = 1024
"""Messages that join queues before all else has its turn: one broadcast may join tens of thousands."""
MOST_UNCONFIRMED = 1 << 18
"""Bytes that one inferlet has broadcast and that were not confirmed; a single message may be larger."""
MOST_LEFT = 4 << 20
"""Unconfirmed bytes of all inferlets of a tenant that have ended, above which its others broadcast no more."""


class Reached(NamedTuple):
    """A broadcast has joined the queues of so many inferlets."""

    inferlets: int


class Wire(Protocol):
    """The way to the control process."""

    def subscribes(self, number: int, topic: str, on: bool) -> None:
        """An inferlet wants what comes to a topic, or does not any more."""

    def broadcasts(self, number: int, future: int, topic: str, text: str) -> None:
        """It says something to a topic."""

    def confirms(self, broadcast: int) -> None:
        """A broadcast that came to this host has room in all queues."""


class Subscription(Source):
    """One inferlet's queue of a topic. `has_room` is called when it is full no more."""

    def __init__(self, owner: Waits, number: int, topic: str, counts: Mapping[int, int]) -> None:
        """`counts`: the subscriptions of each inferlet."""
        super().__init__(Mailbox(owner, self._taken, f"a message to topic {topic!r}"))
        self.number = number
        self.topic = topic
        self._counts = counts
        self._bytes = 0
        self._full: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        return self._bytes * self._counts.get(self.number, 0) > MOST_WAITING

    def put(self, sender: str, text: str) -> None:
        """Adds a message."""
        self._bytes += byte_size(text) + EVENT_BYTES
        self._box.put(text, sender)

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls back once it is full no more, or closed."""
        self._full.append(call)

    def close(self) -> None:
        """Drops what waits."""
        self._bytes = 0
        self._tell()
        self._box.end(Cancelled(f"the subscription to topic {self.topic!r} was closed"))

    def _taken(self, message: Received) -> None:
        self._bytes -= message.size
        self._tell()

    def _tell(self) -> None:
        if self._full and not self.is_full:
            full, self._full = self._full, []
            for call in full:
                call()


class _Arrival:
    """A broadcast that joins the queues of its subscribers, which are left."""

    def __init__(self, message: tuple[str, str, str], subscribers: Sequence[int], confirm: Callable[[], None]) -> None:
        """`message`: its sender, topic and text."""
        self.sender, self.topic, self.text = message
        self.left = deque(subscribers)
        self._confirm = confirm
        self._holds = 1  # queues that are full, and this

    def join(self, queues: Sequence[Subscription]) -> None:
        """Joins the queues of one inferlet."""
        for queue in queues:
            queue.put(self.sender, self.text)
            if queue.is_full:
                self._holds += 1
                queue.when_room(self.let_go)

    def let_go(self) -> None:
        """One that held it up does so no more: it is confirmed if that was the last."""
        self._holds -= 1
        if not self._holds:
            self._confirm()


class Topics:
    """All of a host."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._subscriptions: dict[int, dict[str, list[Subscription]]] = {}  # by inferlet, then by topic
        self._counts: defaultdict[int, int] = defaultdict(int)  # by inferlet
        self._unconfirmed: defaultdict[int, dict[int, int]] = defaultdict(dict)  # bytes by inferlet and future
        self._left: dict[int, tuple[str, dict[int, int]]] = {}  # the same of those that have ended, with their tenants
        self._left_bytes: Counter[str] = Counter()  # of these, by tenant
        self._arriving: deque[_Arrival] = deque()  # oldest first
        self._puts = PUTS_IN_A_TURN  # that are left in this turn

    # ---- for inferlets ----

    def subscribe(self, owner: Waits, number: int, topic: str) -> Subscription:
        """Everything that is broadcast from now on, by whoever hears of this. Raises InvalidArgument,
        QuotaExceeded."""
        _check_name(topic)
        if self._counts[number] >= MOST_SUBSCRIPTIONS:
            raise QuotaExceeded(f"{MOST_SUBSCRIPTIONS} subscriptions exist: unsubscribe from some first")
        self._counts[number] += 1
        subscription = Subscription(owner, number, topic, self._counts)
        same = self._subscriptions.setdefault(number, {}).setdefault(topic, [])
        same.append(subscription)
        if len(same) == 1:
            self._wire.subscribes(number, topic, True)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Drops it, and what waits in it. Raises NotFound if that was done before."""
        number, topic = subscription.number, subscription.topic
        of_inferlet = self._subscriptions.get(number, {})
        same = of_inferlet.get(topic, [])
        if subscription not in same:
            raise NotFound(f"the subscription to topic {topic!r} was closed before")
        same.remove(subscription)
        self._counts[number] -= 1
        if not same:
            del of_inferlet[topic]
            self._wire.subscribes(number, topic, False)
        subscription.close()

    def broadcast(self, number: int, tenant: str, topic: str, text: str, new_future: Callable[[], int]) -> int:
        """The future of a broadcast, which gets `Reached`. Raises InvalidArgument, QuotaExceeded."""
        _check_name(topic)
        size = byte_size(text)
        if size > MOST_MESSAGE:
            raise QuotaExceeded(f"{size} bytes are more than a broadcast may have ({MOST_MESSAGE}): send it in pieces")
        under_way = self._unconfirmed[number]
        too_much = under_way and sum(under_way.values()) + size + EVENT_BYTES > MOST_UNCONFIRMED
        if too_much or len(under_way) >= MOST_UNDER_WAY:
            raise QuotaExceeded(
                f"{len(under_way)} broadcasts are under way, as subscribers take them slowly: await the futures of "
                "earlier ones before you broadcast more"
            )
        if (left := self._left_bytes[tenant]) > MOST_LEFT:
            raise QuotaExceeded(
                f"{left} bytes of broadcasts are under way of inferlets that have ended, as subscribers take them "
                "slowly: try again when they have received some, and await broadcasts before an inferlet ends"
            )
        future = new_future()
        under_way[future] = size + EVENT_BYTES
        self._wire.broadcasts(number, future, topic, text)
        return future

    def ended(self, number: int, tenant: str) -> None:
        """An inferlet has ended, which control knows by itself. Idempotent."""
        if left := self._unconfirmed.pop(number, None):
            self._left[number] = tenant, left
            self._left_bytes[tenant] += sum(left.values())
        self._counts.pop(number, None)
        for same in self._subscriptions.pop(number, {}).values():
            for subscription in same:
                subscription.close()

    # ---- for control ----

    def published(self, broadcast: int, sender: str, topic: str, text: str, subscribers: Sequence[int]) -> None:
        """A broadcast for inferlets of this host; confirmed when all of them have room."""
        confirm = partial(self._wire.confirms, broadcast)
        self._arriving.append(_Arrival((sender, topic, text), subscribers, confirm))
        if self._puts > 0:
            self._deliver()

    def _deliver(self) -> None:
        while self._arriving and self._puts > 0:
            arrival = self._arriving[0]
            if arrival.left:
                queues = self._subscriptions.get(arrival.left.popleft(), {}).get(arrival.topic, ())
                self._puts -= 1 + len(queues)
                arrival.join(queues)
            else:
                self._arriving.popleft().let_go()
        if self._puts <= 0:
            asyncio.get_running_loop().call_soon(self._deliver_more)

    def _deliver_more(self) -> None:
        self._puts = PUTS_IN_A_TURN
        self._deliver()

    def confirmed(self, number: int, future: int) -> None:
        """All hosts have confirmed a broadcast of an inferlet of this one."""
        if number in self._unconfirmed:
            self._unconfirmed[number].pop(future, None)
        elif number in self._left:
            tenant, left = self._left[number]
            self._left_bytes[tenant] -= left.pop(future, 0)
            self._left_bytes += Counter()  # drops those of whom nothing is left
            if not left:
                del self._left[number]


def _check_name(topic: str) -> None:
    size = byte_size(topic)
    if not 0 < size <= MOST_NAME:
        raise InvalidArgument(f"topic: a name has 1 to {MOST_NAME} bytes, not {size}")
