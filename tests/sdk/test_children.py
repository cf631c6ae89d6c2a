"""`launch` and children, on a host that answers at once. What they do is tested in tests/system/test_children.py."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from inferlet_sdk import ChildEnd, ChildFailed, bindings, launch, traits
from inferlet_sdk.dropped import give_back
from inferlet_sdk.event_loop import run
from tests.helpers.fake_host import FakeHost, HostError


@pytest.fixture
def host() -> FakeHost:
    fake = FakeHost()
    bindings.install(fake, HostError)
    return fake


def test_what_a_child_is_given(host: FakeHost) -> None:
    children = [
        launch("writer", "-n", "3", kwargs={"topic": "bees"}, environment={"a": "b"}, max_pages=7, cpu_seconds=0.5),
        launch(),
    ]
    first, second = host.launched.values()
    assert (first["program"], first["arguments"]) == ("writer", ["-n", "3"])
    assert first["environment"] == {"a": "b", "kwargs": '{"topic": "bees"}'}
    assert first["limits"] == {"max_pages": 7, "cpu_seconds": 0.5}
    assert (second["program"], second["arguments"], second["environment"], second["limits"]) == ("", [], {}, {})
    assert len(children) == 2


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        ((1,), {}, "program: give text"),
        (("p", 2), {}, r"arguments\[0\]: give text"),
        (("p",), {"max_pages": "many"}, "max_pages: give a whole number"),
        (("p",), {"cpu_seconds": "1"}, "cpu_seconds: give a number"),
        (("p",), {"environment": {"a": 1}}, r"environment\['a'\]: give text"),
    ],
)
def test_wrong_arguments_are_named(host: FakeHost, arguments: Any, given: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        launch(*arguments, **given)
    assert host.calls == []


@pytest.mark.parametrize("slow", [False, True])
def test_a_child_is_awaited_and_followed(host: FakeHost, slow: bool) -> None:
    host.is_client_slow = slow

    async def main() -> Any:
        child = launch("p", "x")
        await child.send("one")
        await child.send("two")
        said = [message async for message in child]
        return said, await child, await child, await child.join()

    assert run(main()) == (["one", "two"], ["p", "x"], ["p", "x"], ChildEnd("i1", "finished", ["p", "x"], None))


def test_a_child_that_did_not_finish_raises(host: FakeHost) -> None:
    host.child_status = "exceeded"
    child = launch("p")
    with pytest.raises(ChildFailed, match="the child i1 exceeded: no reason") as failed:
        child.result()
    assert failed.value.end == child.join().result()


def test_a_child_that_is_dropped_is_given_back(host: FakeHost) -> None:
    child = launch("p")
    traits.cancel_child(child)
    assert repr(child) == "Child(1)"
    del child
    gc.collect()
    assert host.launched
    give_back()
    assert host.launched == {}
    closed = launch("p")
    closed.close()
    closed.close()
    with pytest.raises(ValueError, match="it was closed"):
        closed.join()
