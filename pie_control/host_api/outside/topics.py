"""topics.wit: messages to all inferlets of the tenant that want them."""

from __future__ import annotations

from ..guest import Guest


def broadcast(guest: Guest, topic: str, message: str) -> int:
    inferlet = guest.inferlet
    tenant = inferlet.launched.standing.tenant.name
    future = guest.reach.topics.broadcast(inferlet.number, tenant, topic, message, guest.futures.new)
    inferlet.waits.begin(future, lambda: None, f"subscribers of topic {topic!r}")
    return future


def subscribe(guest: Guest, topic: str) -> int:
    topics = guest.reach.topics
    subscription = topics.subscribe(guest.inferlet.waits, guest.inferlet.number, topic)
    return guest.add_handle(subscription, lambda: topics.unsubscribe(subscription))
