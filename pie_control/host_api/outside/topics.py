"""topics.wit: messages to all inferlets of the tenant that want them."""

from __future__ import annotations

from ..guest import Guest


def broadcast(guest: Guest, topic: str, message: str) -> int:
    future = guest.reach.topics.broadcast(guest.inferlet.number, topic, message, guest.futures.new)
    guest.inferlet.waits.begin(future, lambda: None, f"subscribers of topic {topic!r}")
    return future


def subscribe(guest: Guest, topic: str) -> int:
    topics = guest.reach.topics
    subscription = topics.subscribe(guest.inferlet.waits, guest.inferlet.number, topic)
    return guest.add_handle(subscription, lambda: topics.unsubscribe(subscription))
