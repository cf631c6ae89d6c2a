"""Topics over several hosts: who gets what, in which order, and when a publisher hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from pie_control.application.messages import Broadcast, Broadcasted, Published, Subscribe, ToHost
from pie_control.engine.topics import TopicExchange


class Scene:
    """Hosts 1 and 2; `told`: what each was told."""

    def __init__(self) -> None:
        self.told: dict[int, list[ToHost]] = {1: [], 2: []}
        self.gone: set[int] = set()
        self.topics = TopicExchange(self.post)

    def post(self, host: int, message: ToHost) -> bool:
        if host in self.gone:
            return False
        self.told[host].append(message)
        return True

    def take(self, host: int) -> list[Any]:
        told, self.told[host] = self.told[host], []
        return told

    def subscribe(self, host: int, number: int, topic: str = "t", tenant: str = "a", on: bool = True) -> None:
        self.topics.subscribe(host, tenant, Subscribe(number, topic, on))

    def broadcast(self, host: int, number: int, text: str = "x", topic: str = "t", tenant: str = "a") -> None:
        self.topics.broadcast(host, tenant, Broadcast(number, 9, topic, text))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_each_host_gets_a_message_once_for_all_its_subscribers(scene: Scene) -> None:
    for host, number in ((1, 11), (2, 21), (1, 12), (2, 22)):
        scene.subscribe(host, number)
    scene.subscribe(2, 23, "other")
    scene.broadcast(1, 11)
    assert scene.take(1) == [Published(1, "i11", "t", "x", [11, 12])]
    assert scene.take(2) == [Published(1, "i11", "t", "x", [21, 22])]


def test_the_publisher_hears_when_all_hosts_have_confirmed(scene: Scene) -> None:
    scene.subscribe(1, 11)
    scene.subscribe(2, 21)
    scene.broadcast(1, 12)
    scene.take(1)
    scene.topics.confirm(1, 1)
    scene.topics.confirm(1, 1)
    scene.topics.confirm(1, 77)
    assert scene.take(1) == []
    scene.topics.confirm(2, 1)
    assert scene.take(1) == [Broadcasted(12, 9, 2)]
    scene.topics.confirm(2, 1)
    assert scene.take(1) == []


def test_nobody_listens(scene: Scene) -> None:
    scene.broadcast(2, 21)
    assert scene.take(2) == [Broadcasted(21, 9, 0)]


def test_tenants_and_topics_are_apart(scene: Scene) -> None:
    scene.subscribe(1, 11, tenant="b")
    scene.subscribe(1, 12, topic="u")
    scene.broadcast(2, 21)
    assert scene.take(1) == []


def test_who_leaves_or_ends_gets_nothing_more(scene: Scene) -> None:
    for number in (11, 12, 13):
        scene.subscribe(1, number)
    scene.subscribe(1, 11, on=False)
    scene.topics.ended(12)
    scene.topics.ended(12)
    scene.broadcast(1, 11)
    assert [message.subscribers for message in scene.take(1)] == [[13]]
    scene.topics.ended(13)
    assert len(scene.topics) == 0, "topics without subscribers are forgotten"


def test_a_lost_host_confirms_nothing_and_holds_up_nobody(scene: Scene) -> None:
    scene.subscribe(1, 11)
    scene.subscribe(2, 21)
    scene.broadcast(1, 12, "a")
    scene.broadcast(1, 12, "b")
    scene.take(1)
    scene.topics.confirm(1, 1)
    scene.gone.add(2)
    scene.topics.lost(2)
    assert scene.take(1) == [Broadcasted(12, 9, 2)]
    scene.topics.confirm(1, 2)
    assert scene.take(1) == [Broadcasted(12, 9, 2)]
    scene.broadcast(1, 12, "c")  # before the end of 21 was noted
    assert scene.take(1) == [Published(3, "i12", "t", "c", [11])]
    scene.topics.confirm(1, 3)
    assert scene.take(1) == [Broadcasted(12, 9, 1)]
    assert not vars(scene.topics)["_under_way"]


def test_a_lost_publisher_leaves_nothing(scene: Scene) -> None:
    scene.subscribe(2, 21)
    scene.broadcast(1, 12)
    scene.gone.add(1)
    scene.topics.lost(1)
    scene.topics.confirm(2, 1)
    assert not vars(scene.topics)["_under_way"]
