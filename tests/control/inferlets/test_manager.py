"""Launching, ending and limits, with a model that is not real."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pie_control.errors import BadRequest, Conflict, Overloaded, QuotaExceeded, UnknownName
from pie_control.inferlets import manager
from pie_control.inferlets.events import Ended, Event
from pie_control.runtime import Runtime
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.servers import Listener, launch, run, started

SECONDS = 60.0
HELLO = "def main(args):\n    return 'hello'\n"
WAIT = "async def main(args):\n    await args.send('ready')\n    return await args.receive()\n"
LOOP = "def main(args):\n    while True:\n        pass\n"


def in_runtime(cache_dir: Path, body: Callable[[Runtime], Awaitable[None]], **options: Any) -> None:
    async def check() -> None:
        async with started(cache_dir, InProcessClient(FakeModel()), **options) as runtime, asyncio.timeout(SECONDS):
            await body(runtime)

    asyncio.run(check())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_the_warm_pool_fills_and_fills_again(guest_cache: Path) -> None:
    async def body(runtime: Runtime) -> None:
        def warm() -> int:
            return runtime.statistics().inferlets.warm

        await until(lambda: warm() == 2)
        assert await run(runtime, HELLO) == "hello"
        await until(lambda: warm() == 2)
        assert [await run(runtime, HELLO) for _ in range(4)] == ["hello"] * 4

    in_runtime(guest_cache, body, warm_pool=2)


def test_an_inferlet_that_does_nothing_for_too_long_ends(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.01)

    async def body(runtime: Runtime) -> None:
        _, listener = await launch(runtime, WAIT)
        assert await listener.ended == Ended("exceeded", None, "was idle for more than 0.2 s")

    in_runtime(guest_cache, body, idle_seconds=0.2)


def test_a_loop_ends_at_its_limit_while_others_go_on(guest_cache: Path) -> None:
    async def body(runtime: Runtime) -> None:
        _, looping = await launch(runtime, LOOP)
        assert await run(runtime, HELLO) == "hello"
        assert await looping.ended == Ended("exceeded", None, "used more than 0.3 s of processor time")
        assert runtime.statistics().inferlets.ended["exceeded"] == 1

    in_runtime(guest_cache, body, cpu_seconds=0.3)


def test_no_more_than_the_most_run_at_a_time(guest_cache: Path) -> None:
    async def body(runtime: Runtime) -> None:
        first, listener = await launch(runtime, WAIT)
        await launch(runtime, WAIT)
        with pytest.raises(Overloaded, match="2 inferlets run"):
            await launch(runtime, WAIT)
        first.send("go")
        await listener.ended
        assert await run(runtime, HELLO) == "hello"

    in_runtime(guest_cache, body, max_inferlets=2)


def test_hundreds_wait_at_a_time_and_the_next_launches_work(guest_cache: Path) -> None:
    async def body(runtime: Runtime) -> None:
        waiting = [await launch(runtime, WAIT) for _ in range(300)]
        for _, listener in waiting:
            await listener.until_messages(1)
        assert await run(runtime, HELLO) == "hello"
        for number, (inferlet, _) in enumerate(waiting):
            inferlet.send(str(number))
        ended = [await listener.ended for _, listener in waiting]
        assert [one.result for one in ended] == [f'"{number}"' for number in range(300)]

    in_runtime(guest_cache, body)


def test_terminating_twice_is_terminating_once(guest_cache: Path) -> None:
    async def body(runtime: Runtime) -> None:
        inferlet, listener = await launch(runtime, WAIT)
        await listener.until_messages(1)
        runtime.terminate(inferlet.id, "first")
        runtime.terminate(inferlet.id, "second")
        assert await listener.ended == Ended("terminated", None, "first")
        assert runtime.statistics().inferlets.ended["terminated"] == 1
        with pytest.raises(Conflict, match="has ended"):
            inferlet.send("too late")

    in_runtime(guest_cache, body)


def test_an_inferlet_can_be_terminated_before_its_first_turn(guest_cache: Path) -> None:
    async def body(runtime: Runtime) -> None:
        inferlet, listener = await launch(runtime, WAIT)
        runtime.terminate(inferlet.id, "at once")
        assert (await listener.ended).status == "terminated"

    in_runtime(guest_cache, body)


@pytest.mark.parametrize("whom", ["itself", "another"])
def test_a_listener_may_terminate(whom: str, guest_cache: Path) -> None:
    """It is called from within a turn of the inferlet that it hears."""

    async def body(runtime: Runtime) -> None:
        ended: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        other, waiting = await launch(runtime, WAIT)
        await waiting.until_messages(1)

        def listener(event: Event) -> None:
            if isinstance(event, Ended):
                ended.set_result(event)
            else:
                runtime.terminate(inferlet.id if whom == "itself" else other.id, "by a listener")

        program = (await runtime.upload(WAIT.encode(), "wait")).program
        inferlet = await runtime.launch(program, listener=listener)
        expected = Ended("terminated", None, "by a listener")
        if whom == "itself":
            assert await ended == expected
        else:
            assert await waiting.ended == expected
            inferlet.send("it goes on")
            assert await ended == Ended("finished", '"it goes on"', None)

    in_runtime(guest_cache, body)


def test_a_listener_that_fails_does_not_keep_an_inferlet_from_ending(guest_cache: Path) -> None:
    def fails(_event: Event) -> None:
        raise RuntimeError("of the listener")

    async def body(runtime: Runtime) -> None:
        program = (await runtime.upload(HELLO.encode(), "hello")).program
        inferlet = await runtime.launch(program, listener=fails)
        await until(lambda: inferlet.info().status == "finished")
        assert runtime.inferlet(inferlet.id).info().result == '"hello"'

    in_runtime(guest_cache, body)


def test_ended_inferlets_are_kept_within_bounds(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "KEPT_ENDED", 3)

    async def body(runtime: Runtime) -> None:
        ended = []
        for _ in range(5):
            inferlet, listener = await launch(runtime, HELLO)
            await listener.ended
            ended.append(inferlet.id)
        assert [info.id for info in runtime.inferlets()] == ended[2:]
        with pytest.raises(UnknownName, match="ended long ago"):
            runtime.inferlet(ended[0])

    in_runtime(guest_cache, body)


def test_what_ended_inferlets_keep_is_bounded_in_bytes(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "KEPT_ENDED_BYTES", 250_000)
    talk = "def main(args):\n    args.send('x' * 100_000)\n"

    async def body(runtime: Runtime) -> None:
        program = (await runtime.upload(talk.encode(), "talk")).program
        for _ in range(5):
            inferlet = await runtime.launch(program)
            await until(lambda one=inferlet: one.info().status == "finished")
        assert len(runtime.inferlets()) == 2
        heard: list[Event] = []
        runtime.inferlets()
        runtime.inferlet(inferlet.id).attach(heard.append)
        assert len(heard) == 2

    in_runtime(guest_cache, body)


def test_messages_are_bounded_in_bytes(guest_cache: Path) -> None:
    program = """
from inferlet_sdk import QuotaExceeded
def main(args):
    args.send("ü" * 512)
    try:
        args.send("ü" * 513)
    except QuotaExceeded as error:
        return str(error)
"""

    async def body(runtime: Runtime) -> None:
        assert "1026 bytes are more" in await run(runtime, program)
        inferlet, _ = await launch(runtime, WAIT)
        with pytest.raises(QuotaExceeded, match="1200 bytes are more"):
            inferlet.put_message("世" * 400)
        with pytest.raises(BadRequest, match="more than 1024"):
            await runtime.launch(inferlet.program.hash, ["世" * 400])

    in_runtime(guest_cache, body, max_message_bytes=1024)


def test_a_stopping_server_ends_what_runs(guest_cache: Path) -> None:
    listeners: list[Listener] = []

    async def check() -> None:
        async with started(guest_cache, InProcessClient(FakeModel())) as runtime:
            _, listener = await launch(runtime, WAIT)
            listeners.append(listener)
            await listener.until_messages(1)
        await runtime.close()
        assert await listener.ended == Ended("terminated", None, "the server stops")

    asyncio.run(check())
