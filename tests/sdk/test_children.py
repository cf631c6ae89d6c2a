"""`launch` and children, which say here what they are sent. What they do is tested in tests/system/test_children.py."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from inferlet_sdk import ChildEnd, ChildFailed, broadcast, launch, map_children, subscribe, traits
from inferlet_sdk.dropped import give_back
from inferlet_sdk.event_loop import run
from tests.helpers.native_host import NativeHost


def test_what_a_child_is_given(host: NativeHost) -> None:
    given: list[Any] = []
    launch_child = host.children.launch

    def recorded(program: str, arguments: list[str], options: str) -> Any:
        given.append((program, arguments, json.loads(options)))
        return launch_child(program, arguments, options)

    host.children.launch = recorded
    children = [
        launch("writer", "-n", 3, topic="bees", environment={"a": "b"}, max_pages=7, cpu_seconds=0.5),
        launch(),
        launch(None, "x", {"a": [1]}),
    ]
    environment = {"a": "b", "args": '{"1": 3}', "kwargs": '{"topic": "bees"}'}
    limits = {"max_pages": 7, "cpu_seconds": 0.5}
    assert given == [
        ("writer", ["-n", "3"], {"environment": environment, "limits": limits}),
        ("", [], {"environment": {}, "limits": {}}),
        ("", ["x", '{"a": [1]}'], {"environment": {"args": '{"1": {"a": [1]}}'}, "limits": {}}),
    ]
    assert len(children) == 3


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        ((1,), {}, "program: give the name or hash of a program, or a function of this one, not int 1"),
        (("p", "x", {2}), {}, r"args\[1\]: give text, a number, .*, not set \{2\}"),
        (("p",), {"topic": b"x"}, "topic: give text, a number, .*, not bytes b'x'"),
        ((lambda args: 1,), {}, "program: .*<lambda> does not stand at the top of the main file"),
        (("p",), {"max_pages": "many"}, "max_pages: give a whole number"),
        (("p",), {"cpu_seconds": "1"}, "cpu_seconds: give a number"),
        (("p",), {"environment": {"a": 1}}, r"environment\['a'\]: give text"),
    ],
)
def test_wrong_arguments_are_named(host: NativeHost, arguments: Any, given: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        launch(*arguments, **given)
    assert host.calls == []


def test_a_child_is_awaited_and_followed(host: NativeHost) -> None:
    async def main() -> Any:
        child = launch("test", "x")
        for message in ("one", "two", "end"):
            await child.send(message)
        said = [message async for message in child]
        return said, await child, await child, await child.join()

    assert run(main()) == (["one", "two"], ["x"], ["x"], ChildEnd("i2", "finished", ["x"], None))


def test_a_child_that_was_awaited_with_a_timeout_is_awaited_again(host: NativeHost) -> None:
    async def main() -> Any:
        child = launch("test", "x")
        other = asyncio.ensure_future(child.join())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await child
        await child.send("end")
        return await child, await other

    assert run(main()) == (["x"], ChildEnd("i2", "finished", ["x"], None))


def test_a_wait_for_what_comes_that_is_cut_short_loses_nothing(host: NativeHost) -> None:
    async def polled(things: Any) -> Any:
        while True:
            try:
                return await asyncio.wait_for(anext(things, "the end"), 0.001)
            except TimeoutError:
                said.append("late")

    said: list[str] = []

    async def main() -> list[Any]:
        child, news = launch("test", "x"), subscribe("news")
        waiting = [asyncio.ensure_future(polled(aiter(one))) for one in (child, news)]
        await asyncio.sleep(0.01)
        await asyncio.gather(child.send("one"), broadcast("news", "two"))
        one, two = await asyncio.gather(*waiting)
        await child.send("end")
        return [one, two.text, await polled(aiter(child))]

    assert run(main()) == ["one", "two", "the end"]
    assert "late" in said


def told_to_end(host: NativeHost) -> list[tuple[list[str], str | None]]:
    """Children end at once. Returns what will have been launched: words, and values that are none."""
    given: list[tuple[list[str], str | None]] = []
    launch_child = host.children.launch

    def launched(program: str, arguments: list[str], options: str) -> Any:
        given.append((arguments, json.loads(options)["environment"].get("args")))
        child = launch_child(program, arguments, options)
        host.core.send(child, "end")
        return child

    host.children.launch = launched
    return given


@pytest.mark.parametrize("ordered", [True, False])
def test_children_are_mapped(host: NativeHost, ordered: bool) -> None:
    given = told_to_end(host)

    async def main() -> list[Any]:
        return [one async for one in map_children("test", iter(["a=1", 2, "c"]), at_once=2, ordered=ordered)]

    assert sorted(run(main())) == [["2"], ["a=1"], ["c"]]
    assert given == [(["a=1"], '{"0": "a=1"}'), (["2"], '{"0": 2}'), (["c"], '{"0": "c"}')]


@pytest.mark.parametrize("way", ["taken", "dropped", "broken"])
def test_mapped_children_end_with_their_iterator_and_not_with_a_wait(host: NativeHost, way: str) -> None:
    launched, ended = noted(host, "launch"), noted(host, "cancel_child")

    def inputs() -> Iterator[str]:
        yield from "ab"
        if way == "broken":
            raise ValueError("no more")

    async def main() -> list[Any]:
        results: Any = map_children("test", inputs(), at_once=2)
        for _ in range(3):
            task = asyncio.ensure_future(anext(results))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert (len(launched), ended) == (2, [])
        if way == "dropped":
            del results, task
            return await asyncio.sleep(0.001, [])
        host.core.send(launched[0], "end")
        if way == "broken":
            with pytest.raises(ValueError, match="no more"):
                await anext(results)
        else:
            assert await anext(results) == ["a"]
            host.core.send(launched[1], "end")
        return [one async for one in results]

    assert run(main()) == ([["b"]] if way == "taken" else [])
    assert ended == {"taken": [], "broken": launched[1:], "dropped": launched[::-1]}[way]


def noted(host: NativeHost, name: str) -> list[int]:
    """The children that a call makes, or is told."""
    found: list[int] = []
    call = getattr(host.children, name)

    def note(*given: Any) -> Any:
        value = call(*given)
        found.append(given[0] if value is None else value)
        return value

    setattr(host.children, name, note)
    return found


def test_a_mapped_child_that_fails_raises(host: NativeHost) -> None:
    told_to_end(host)

    async def main(at_once: int) -> list[Any]:
        return [one async for one in map_children("test", ["a", "fail", "b"], at_once=at_once)]

    with pytest.raises(ChildFailed, match="it was told to fail"):
        run(main(1))
    with pytest.raises(ValueError, match="at_once"):
        run(main(0))


def test_a_child_that_did_not_finish_raises(host: NativeHost) -> None:
    child = launch("test", "fail")
    child.send("end")
    with pytest.raises(ChildFailed, match="the child i2 failed: it was told to fail") as failed:
        child.result()
    assert failed.value.end == child.join().result()


def test_a_child_that_is_dropped_is_given_back(host: NativeHost) -> None:
    child = launch("test")
    traits.cancel_child(child)
    assert re.fullmatch(r"Child\(\d+\)", repr(child))
    del child
    gc.collect()
    assert host.handles
    give_back()
    assert host.handles == []
    closed = launch("test")
    closed.close()
    closed.close()
    with pytest.raises(ValueError, match="it was closed"):
        closed.join()
