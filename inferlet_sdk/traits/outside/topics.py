"""Messages to all inferlets of the tenant that want them (topics.wit; paper, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from inferlet_sdk import bindings
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import Cancelled, NotFound, call
from inferlet_sdk.event_loop import wait_for
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.arguments import whole

__all__ = ["Published", "Subscription", "broadcast", "next_published", "subscribe", "unsubscribe"]


@dataclass(frozen=True)
class Published:
    """A message that came to a topic. `sender`: id of the inferlet that has sent it (`get_env()["inferlet"]` there)."""

    sender: str
    text: str


class Subscription:
    """A queue of what comes to a topic: `async for message in subscription`, or `await subscription.next()`.

        with subscribe("news") as news:
            async for message in news:
                print(message.sender, message.text)

    What waits in it is kept. Publishers wait while too much does; so close it, or drop it, when you take no more.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._host = bindings.host
        self.number: int | None = call(bindings.topics.subscribe, checked_text(topic, "topic"))

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}{'' if self.number else ', closed'})"

    def next(self) -> HostFuture[Published]:
        """The next message. A future that is cancelled leaves it to the next one."""
        if self.number is None:
            raise NotFound(f"the subscription to {self.topic!r} is closed")
        return HostFuture(call(bindings.core.receive, self.number), _take_published)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Published:
        if self.number is not None:
            with suppress(Cancelled):  # it was closed meanwhile
                return await self.next()
        raise StopAsyncIteration

    def __iter__(self) -> Iterator[Published]:
        while self.number is not None:
            yield self.next().result()

    def close(self) -> None:
        """Unsubscribes; what waits is dropped. Idempotent."""
        number, self.number = self.number, None
        if number is not None:
            call(bindings.core.drop, number)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "number", None) is not None:
            drop(self, self._host)


def _take_published(future: int) -> Published:
    wait_for([future])
    text, sender, _ = bindings.core.await_message(future)
    return Published(sender, text)


def broadcast(topic: str, message: str) -> HostFuture[int]:
    """Sends a message to all inferlets of the tenant that have subscribed, this one included if it has. `await` gives
    how many; it waits while one of them has a full queue.

    Messages of one inferlet keep their order. Raises QuotaExceeded if too many are under way that nobody awaits.
    """
    number = call(bindings.topics.broadcast, checked_text(topic, "topic"), checked_text(message, "message"))
    return HostFuture(number, bindings.core.await_number)


def subscribe(topic: str) -> Subscription:
    """From now on, messages to the topic are kept for this inferlet."""
    return Subscription(topic)


# ---- calls under their own names ----


def next_published(subscription: Subscription | int) -> HostFuture[Published]:
    """A future of the next message; `Subscription.next` is the same."""
    if isinstance(subscription, Subscription):
        return subscription.next()
    number = whole(subscription, "subscription", least=1, wanted="what `subscribe` returned")
    return HostFuture(call(bindings.core.receive, number), _take_published)


def unsubscribe(subscription: Subscription | int) -> None:
    """Drops a subscription; `Subscription.close` is the same."""
    if isinstance(subscription, Subscription):
        subscription.close()
    else:
        call(bindings.core.drop, whole(subscription, "subscription", wanted="what `subscribe` returned"))
