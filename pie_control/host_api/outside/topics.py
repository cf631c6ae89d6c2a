"""topics.wit: messages to all inferlets of the tenant that want them."""

from __future__ import annotations

from typing import Any

from ...inferlets.relations.mail import Letter
from ...inferlets.relations.topics import Subscription
from ..guest import Guest
from ..suspending import suspending, when_done


def broadcast(guest: Guest, topic: str, message: str) -> int:
    return guest.reach.topics.broadcast(guest.inferlet.number, topic, message, guest.futures.new)


def subscribe(guest: Guest, topic: str) -> int:
    topics = guest.reach.topics
    subscription = topics.subscribe(guest.inferlet.waits, guest.inferlet.number, topic)
    return guest.add_handle(subscription, lambda: topics.unsubscribe(subscription))


def next_published(guest: Guest, subscription: int) -> int:
    queue = guest.handle(subscription, Subscription)
    future = guest.futures.new()
    queue.receive(future)
    return future


def _take_published(guest: Guest, future: int) -> tuple[str, str]:
    letter: Letter = guest.futures.take(future, Letter)
    assert letter.message is not None, "a subscription that was closed gives an error"
    return letter.message.sender, letter.message.text


@suspending
def await_published(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_published(guest, future))
