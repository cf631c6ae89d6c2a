"""asyncio on the host's futures."""

from __future__ import annotations

import asyncio

import pytest

from inferlet_sdk import QuotaExceeded, traits
from inferlet_sdk.event_loop import Deadlock, HostEventLoop, run
from tests.helpers.native_host import NativeHost, install


def test_sleeping_tasks_wake_in_order_of_their_times(host: NativeHost) -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def one(n: int) -> None:
            await asyncio.sleep(n / 100)
            order.append(n)

        await asyncio.gather(*(one(n) for n in (3, 1, 2)))
        return order

    assert run(main()) == [1, 2, 3]
    assert not host.futures


def test_host_futures_and_timers_wait_together(host: NativeHost) -> None:
    async def main() -> str:
        async def client() -> None:
            await asyncio.sleep(0.001)
            host.post("hi")

        async with asyncio.TaskGroup() as group:
            group.create_task(client())
            message = group.create_task(_receive())
        return message.result()

    assert run(main()) == "hi"


async def _receive() -> str:
    return await traits.receive()


def test_a_timeout_cancels_the_host_future(host: NativeHost) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await traits.receive()

    run(main())
    assert not host.futures


def test_a_timer_for_which_there_is_no_future_is_late() -> None:
    install(max_futures=2)

    async def main(awaited: bool) -> None:
        futures = [traits.sleep(0.01) for _ in range(2)]
        tasks = [asyncio.ensure_future(one) for one in futures if awaited]
        await asyncio.gather(asyncio.sleep(0.001), *tasks)

    run(main(True))
    with pytest.raises(QuotaExceeded, match="2 futures are open"):
        run(main(False))


def test_queue_and_event_pass_between_tasks(host: NativeHost) -> None:
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        go = asyncio.Event()

        async def producer() -> None:
            await go.wait()
            for n in range(3):
                await queue.put(n)

        task = asyncio.create_task(producer())
        go.set()
        items = [await queue.get() for _ in range(3)]
        await task
        return items

    assert run(main()) == [0, 1, 2]


def test_two_tasks_may_wait_for_one_future(host: NativeHost) -> None:
    async def main() -> list[str]:
        future = traits.receive()
        host.post("x")

        async def one() -> str:
            return await future

        return list(await asyncio.gather(one(), one()))

    assert run(main()) == ["x", "x"]


def test_a_lone_task_suspends_without_a_turn_of_the_loop(host: NativeHost) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HostEventLoop)
        assert loop.is_alone()
        host.post("x")
        await traits.receive()

    run(main())
    assert host.calls == ["receive", "wait", "await_message"]


def test_a_deadlock_names_who_waits_where(host: NativeHost) -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"stuck \(line \d+ of .*test_event_loop"):
        run(stuck())


def test_spinning_tasks_let_the_host_in(host: NativeHost) -> None:
    async def main() -> str:
        task = asyncio.create_task(_receive())
        host.post("x")
        while not task.done():
            await asyncio.sleep(0)
        return task.result()

    assert run(main()) == "x"


def test_tasks_left_over_are_cancelled(host: NativeHost) -> None:
    cleaned = []

    async def left() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cleaned.append(True)

    async def main() -> None:
        task = asyncio.create_task(left())
        await asyncio.sleep(0)
        assert not task.done()

    run(main())
    assert cleaned == [True]
    assert not host.futures


def test_an_unhandled_error_of_a_task_is_printed(host: NativeHost, capsys: pytest.CaptureFixture[str]) -> None:
    async def bad() -> None:
        raise ValueError("lost")

    async def main() -> None:
        task = asyncio.create_task(bad())
        await asyncio.sleep(0)
        del task

    run(main())
    assert "ValueError: lost" in capsys.readouterr().err


def test_threads_are_refused_with_advice(host: NativeHost) -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="no threads"):
        run(main())
