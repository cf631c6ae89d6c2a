"""topics.wit: messages to all inferlets of the tenant that want them."""

from __future__ import annotations

from ..guest import Guest


def broadcast(guest: Guest, topic: str, message: str) -> int:
    return guest.reach.topics.broadcast(guest.inferlet.number, topic, message, guest.futures.new)


def subscribe(guest: Guest, topic: str) -> int:
    topics = guest.reach.topics
    subscription = topics.subscribe(guest.inferlet.waits, guest.inferlet.number, topic)
    return guest.add_handle(subscription, lambda: topics.unsubscribe(subscription))
