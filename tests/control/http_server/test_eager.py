"""Coroutines that begin at once, and become tasks only when they wait."""

from __future__ import annotations

import asyncio

import pytest

from pie_control.http_server.session.eager import begin


def test_what_need_not_wait_is_done_at_once() -> None:
    said: list[str] = []

    async def work() -> None:
        said.append("done")

    async def check() -> None:
        assert begin(work()) is None
        assert said == ["done"]

    asyncio.run(check())


def test_what_waits_goes_on_as_a_task() -> None:
    said: list[str] = []

    async def check() -> None:
        door = asyncio.get_running_loop().create_future()

        async def work() -> None:
            said.append("begun")
            said.append(await door)
            await asyncio.sleep(0)
            said.append(await asyncio.shield(asyncio.ensure_future(asyncio.sleep(0, "slept"))))

        task = begin(work())
        assert task is not None
        assert said == ["begun"]
        await asyncio.sleep(0)
        door.set_result("opened")
        await task
        assert said == ["begun", "opened", "slept"]

    asyncio.run(check())


def test_errors_reach_whoever_asks_and_the_coroutine_can_handle_those_that_it_awaits() -> None:
    said: list[str] = []

    async def check() -> None:
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

        async def work() -> None:
            try:
                await first
            except ValueError as error:
                said.append(str(error))
            await second

        task = begin(work())
        assert task is not None
        first.set_exception(ValueError("handled"))
        second.set_exception(ValueError("raised"))
        with pytest.raises(ValueError, match="raised"):
            await task
        assert said == ["handled"]

        async def fails() -> None:
            raise KeyError("at once")

        with pytest.raises(KeyError, match="at once"):
            begin(fails())

    asyncio.run(check())


def test_a_task_that_is_cancelled_cancels_what_it_goes_on_with() -> None:
    said: list[str] = []

    async def check() -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                said.append("cancelled")
                raise

        task = begin(work())
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert said == ["cancelled"]

    asyncio.run(check())
