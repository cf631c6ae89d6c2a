"""The line before launches: who goes, who waits, who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pie_control.errors import TooManyRequests
from pie_control.gateway.line import LineLimits, WaitingLine
from pie_control.gateway.refusal import Refused
from pie_control.gateway.waiting.waiters import PLACES
from pie_control.tenants.tenant import DEFAULT_STANDING, ServiceClass, Standing, Tenant
from tests.helpers.guard import HANG_SECONDS

ANN, BOB = Standing(Tenant("ann")), Standing(Tenant("bob", weight=2.0))
BATCH = Standing(Tenant("ann"), ServiceClass.BATCH)


class Played:
    """A line whose clock stands still, and what has happened to those that came."""

    def __init__(self, serving: int = 1, waiting: int = 9, seconds: float = 60.0) -> None:
        self.now = 0.0
        self.has_memory = True
        self.line = WaitingLine(LineLimits(serving, waiting, seconds), lambda: self.now, lambda: self.has_memory)
        self.went: list[str] = []
        self.evicted: set[str] = set()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, name: str, standing: Standing = DEFAULT_STANDING) -> None:
        """One comes, and `check` foretells whether it is refused at once."""
        foretold = self.refuses(standing)
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._serve(name, standing))
        await self.settle()
        assert foretold == self.tasks[name].done()

    def refuses(self, standing: Standing) -> bool:
        try:
            self.line.check(standing)
        except Refused:
            return True
        return False

    async def _serve(self, name: str, standing: Standing) -> None:
        async with self.line.place(standing) as place:
            self.went.append(name)
            await self._ends[name].wait()
            place.leave(name in self.evicted)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    def refusal(self, name: str) -> Refused:
        error = self.tasks[name].exception()
        assert isinstance(error, Refused)
        return error

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, HANG_SECONDS))


def test_they_go_by_class_then_by_what_tenants_have() -> None:
    async def test() -> None:
        line = Played(serving=3)
        for name, standing in [("b1", BOB), ("b2", BOB), ("a1", ANN)]:
            await line.come(name, standing)
        for name, standing in [("job", BATCH), ("a2", ANN), ("b3", BOB), ("a3", ANN)]:
            await line.come(name, standing)
        assert line.went == ["b1", "b2", "a1"]
        await line.end("b1")  # bob has 1 of weight 2, ann 1 of weight 1
        await line.end("a1")  # bob has 2, ann none
        await line.end("b2")
        await line.end("a2")
        assert line.went[3:] == ["b3", "a2", "a3", "job"]
        await line.close()

    play(test())


def test_a_full_line_refuses_the_last_of_the_tenant_with_most() -> None:
    async def test() -> None:
        line = Played(waiting=3)
        for name, standing in [("a0", ANN), ("a1", ANN), ("a2", ANN), ("a3", ANN)]:
            await line.come(name, standing)
        await line.come("b1", BOB)
        assert (line.refusal("a3").status, line.refusal("a3").code) == (503, "overloaded")
        await line.come("a4", ANN)
        assert line.refusal("a4").retry_after == 1
        await line.end("a0")
        assert line.went == ["a0", "b1"]
        await line.close()

    play(test())


def of(tenant: str, priority: int) -> Standing:
    return Standing(Tenant(tenant), priority=priority)


def test_lower_priorities_go_first_within_their_tenant() -> None:
    """Tenants take turns, whatever the priorities of one are; and the one with the highest is refused first."""

    async def test() -> None:
        line = Played(waiting=6)
        await line.come("b0", of("bob", 0))
        for name, standing in [("a1", of("ann", 0)), ("a2", of("ann", 2)), ("a3", of("ann", 0)), ("a4", of("ann", -1))]:
            await line.come(name, standing)
        for name in ("b1", "b2"):
            await line.come(name, of("bob", 0))
        await line.come("b3", of("bob", -10))
        assert line.refusal("a2").status == 503
        for name in ("b0", "a4", "a1", "b3", "a3", "b1"):
            await line.end(name)
        assert line.went == ["b0", "a4", "a1", "b3", "a3", "b1", "b2"]
        await line.close()

    play(test())


def test_nobody_is_passed_for_ever() -> None:
    """A request is passed by PLACES later ones for each step between their priorities."""

    async def test() -> None:
        line = Played(waiting=99)
        await line.come("first")
        await line.come("late", of("default", 1))
        for number in range(PLACES + 5):
            await line.come(f"r{number}")
        for _ in range(PLACES + 6):
            await line.end(line.went[-1])
        assert line.went.index("late") == PLACES, "behind the first one, and those that passed it"
        await line.close()

    play(test())


def test_without_room_to_wait_who_finds_a_place_is_not_refused() -> None:
    async def test() -> None:
        line = Played(waiting=0)
        await line.come("r0")
        await line.come("r1")
        assert line.refusal("r1").status == 503
        line.has_memory = False
        await line.end("r0")
        await line.come("r2")
        assert line.went == ["r0", "r2"]
        await line.close()

    play(test())


def test_batch_requests_are_refused_first() -> None:
    async def test() -> None:
        line = Played(waiting=1)
        await line.come("a0", ANN)
        await line.come("job", BATCH)
        await line.come("b1", BOB)
        assert line.refusal("job").status == 503
        assert not line.tasks["b1"].done()
        await line.close()

    play(test())


def test_what_would_wait_too_long_is_refused_at_once() -> None:
    async def test() -> None:
        line = Played(seconds=20.0)
        await line.come("r0")
        for number in range(1, 25):  # one goes every 4 seconds
            await line.come(f"r{number}")
            line.now += 4.0
            await line.end(f"r{number - 1}")
        for name in ("first", "second"):  # 4 and 8 seconds
            await line.come(name)
        await line.come("third")  # 12 seconds in the mean, more than 20 perhaps
        assert line.refusal("third").retry_after == 8
        assert not line.tasks["first"].done()
        assert not line.tasks["second"].done()
        await line.close()

    play(test())


def test_one_may_wait_whatever_the_pace_was() -> None:
    async def test() -> None:
        line = Played(seconds=20.0)
        await line.come("r0")
        line.now = 300.0
        await line.end("r0")
        await line.come("r1")
        await line.come("r2")
        await line.end("r1")
        assert line.went == ["r0", "r1", "r2"]
        await line.close()

    play(test())


def test_nobody_waits_beyond_the_deadline() -> None:
    async def test() -> None:
        line = Played(seconds=0.001)
        await line.come("r0")
        await line.come("r1")
        await asyncio.wait([line.tasks["r1"]])
        assert line.refusal("r1").status == 503
        await line.end("r0")
        await line.come("r2")
        assert line.went == ["r0", "r2"]
        await line.close()

    play(test())


def test_what_is_past_its_deadline_does_not_begin() -> None:
    async def test() -> None:
        line = Played(seconds=10.0)
        await line.come("r0")
        await line.come("r1")
        line.now = 5.0
        await line.come("r2")
        line.now = 11.0  # the timer of r1 has not had its turn
        await line.end("r0")
        assert line.refusal("r1").status == 503
        assert line.went == ["r0", "r2"]
        await line.close()

    play(test())


def test_those_who_leave_cost_nothing() -> None:
    async def test() -> None:
        line = Played()
        for name in ("r0", "r1", "r2", "r3"):
            await line.come(name)
        line.tasks["r1"].cancel()
        await line.settle()
        line._ends["r0"].set()
        line.tasks["r2"].cancel()  # in the moment in which its turn comes, or before
        await line.settle()
        assert line.went == ["r0", "r3"]
        await line.end("r3")
        await line.come("r4")
        assert line.went[-1] == "r4"
        await line.close()

    play(test())


def test_the_bound_of_a_tenant_is_told_at_once() -> None:
    async def test() -> None:
        line, few = WaitingLine(LineLimits(1, 9, 60.0), lambda: 0.0), Standing(Tenant("eve", max_inferlets=1))
        async with AsyncExitStack() as served:
            await served.enter_async_context(line.place(few))
            with pytest.raises(TooManyRequests, match="1 requests of tenant eve"):
                line.check(few)
            with pytest.raises(TooManyRequests, match="1 requests of tenant eve"):
                await served.enter_async_context(line.place(few))

    play(test())


def test_who_waits_for_memory_goes_once_there_is_some_though_nobody_comes_or_ends() -> None:
    async def test() -> None:
        line = Played(serving=2)
        await line.come("first")
        line.has_memory = False
        await line.come("second")
        assert line.went == ["first"]
        line.has_memory = True
        while line.went != ["first", "second"]:
            await asyncio.sleep(0.001)
        await line.close()

    play(test())


def test_while_memory_is_short_nobody_goes_unless_none_is_served() -> None:
    async def test() -> None:
        line = Played(serving=9)
        await line.come("r0")
        await line.come("r1")
        line.has_memory = False
        for name in ("r2", "r3", "r4"):
            await line.come(name)
        await line.end("r0")
        assert line.went == ["r0", "r1"]
        await line.end("r1")
        assert line.went == ["r0", "r1", "r2"]
        line.has_memory = True
        await line.come("r5")
        assert sorted(line.went[3:]) == ["r3", "r4", "r5"]
        await line.close()

    play(test())


def test_as_many_are_served_as_an_eviction_has_left() -> None:
    async def test() -> None:
        line = Played(serving=3)
        for name in ("r0", "r1", "r2", "r3"):
            await line.come(name)
        line.evicted = {"r1", "r2"}
        await line.end("r1")
        await line.end("r2")
        assert line.went == ["r0", "r1", "r2"]  # one of three places is left
        await line.end("r0")
        assert line.went[3:] == ["r3"]
        await line.close()

    play(test())


def test_who_is_served_and_who_waits_is_told_by_tenant() -> None:
    async def check() -> None:
        played = Played()
        await played.come("a", ANN)
        played.now = 1.0
        await played.come("b", BOB)
        played.now = 2.0
        await played.come("c", BATCH)
        await played.come("d", BOB)
        played.now = 4.5
        assert played.line.tenants() == [
            {"tenant": "ann", "served": 1, "waiting": 1, "oldest_wait": 2.5},
            {"tenant": "bob", "served": 0, "waiting": 2, "oldest_wait": 3.5},
        ]
        await played.close()
        assert played.line.tenants() == []

    asyncio.run(check())
