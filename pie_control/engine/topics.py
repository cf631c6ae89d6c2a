"""Topics over all hosts: who has subscribed, and which broadcasts are under way. The theory stands with the hosts' part
(`inferlets/relations/topics.py`).

A topic belongs to a tenant. What one host says arrives in order, and what is said to it as well; so broadcasts of one
inferlet keep their order everywhere, all subscribers see those of a topic in the same order, and whoever hears of a
subscription, from whom ever, broadcasts to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..application.messages import Broadcast, Broadcasted, Published, Subscribe, ToHost

Topic = tuple[str, str]
"""Tenant and name."""


@dataclass(frozen=True)
class _UnderWay:
    """A broadcast and the hosts that have not confirmed it. `reached`: inferlets."""

    host: int  # of the publisher
    publisher: int
    future: int
    unconfirmed: set[int]
    reached: int


class TopicExchange:
    """`post` says something to a host, by its number; False: it is gone. Belongs to the thread of one event loop."""

    def __init__(self, post: Callable[[int, ToHost], bool]) -> None:
        self._post = post
        self._subscribers: dict[Topic, dict[int, int]] = {}  # the host of each inferlet, in the order of subscription
        self._topics: dict[int, set[Topic]] = {}  # by inferlet
        self._under_way: dict[int, _UnderWay] = {}
        self._last = 0

    def __len__(self) -> int:
        """Topics with subscribers."""
        return len(self._subscribers)

    def subscribe(self, host: int, tenant: str, message: Subscribe) -> None:
        """An inferlet wants what comes to a topic, or does not any more."""
        topic = tenant, message.topic
        if message.on:
            self._subscribers.setdefault(topic, {})[message.number] = host
            self._topics.setdefault(message.number, set()).add(topic)
        else:
            self._leave(message.number, topic)
            self._topics[message.number].discard(topic)

    def broadcast(self, host: int, tenant: str, message: Broadcast) -> None:
        """Passes a broadcast on to the hosts of its subscribers."""
        hosts: dict[int, list[int]] = {}
        for number, where in self._subscribers.get((tenant, message.topic), {}).items():
            hosts.setdefault(where, []).append(number)
        self._last += 1
        sender = f"i{message.number}"
        told = {
            where
            for where, numbers in hosts.items()
            if self._post(where, Published(self._last, sender, message.topic, message.text, numbers))
        }
        reached = sum(len(hosts[where]) for where in told)
        self._under_way[self._last] = _UnderWay(host, message.number, message.future, told, reached)
        self._settle(self._last)

    def confirm(self, host: int, broadcast: int) -> None:
        """A host has room in all queues that a broadcast has joined."""
        if broadcast in self._under_way:
            self._under_way[broadcast].unconfirmed.discard(host)
            self._settle(broadcast)

    def _settle(self, broadcast: int) -> None:
        """Tells the publisher, if all hosts have confirmed."""
        one = self._under_way[broadcast]
        if not one.unconfirmed:
            del self._under_way[broadcast]
            self._post(one.host, Broadcasted(one.publisher, one.future, one.reached))

    # ---- ends ----

    def ended(self, number: int) -> None:
        """An inferlet has ended. Idempotent."""
        for topic in self._topics.pop(number, ()):
            self._leave(number, topic)

    def _leave(self, number: int, topic: Topic) -> None:
        subscribers = self._subscribers.get(topic, {})
        subscribers.pop(number, None)
        if not subscribers:
            self._subscribers.pop(topic, None)

    def lost(self, host: int) -> None:
        """A host is gone, with its inferlets: it confirms nothing more."""
        for broadcast in list(self._under_way):
            self.confirm(host, broadcast)
