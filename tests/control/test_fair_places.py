"""Places for work that takes long: bounds and order."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.fair_places import FairPlaces
from tests.helpers.guard import HANG_SECONDS


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Takes a place and keeps it until `done`; notes who began, in order."""

    def __init__(self, places: FairPlaces, tenant: str, begun: list[str]) -> None:
        self.tenant = tenant
        self.done = asyncio.Event()
        self.has_place = False
        self._begun = begun
        self.task = asyncio.create_task(self._run(places))

    async def _run(self, places: FairPlaces) -> None:
        async with places.place(self.tenant):
            self._begun.append(self.tenant)
            self.has_place = True
            try:
                await self.done.wait()
            finally:
                self.has_place = False


def test_one_tenant_leaves_a_place_for_another() -> None:
    async def test() -> None:
        begun: list[str] = []
        places = FairPlaces(3)
        many = [Work(places, "many", begun) for _ in range(10)]
        await settle()
        assert begun == ["many", "many"]
        Work(places, "one", begun).done.set()
        await settle()
        assert begun == ["many", "many", "one"]
        for work in many:
            work.done.set()
        await settle()
        assert begun.count("many") == 10

    asyncio.run(test())


def test_who_gives_up_is_forgotten_at_once() -> None:
    async def test() -> None:
        places = FairPlaces(1)
        async with places.place("one"):
            waiting = [Work(places, "many", []) for _ in range(2)]
            await settle()
            for work in waiting:
                work.task.cancel()
            await settle()
            assert not vars(places)["_waiting"]

    asyncio.run(test())


def test_several_tenants_that_keep_their_places_leave_some_for_others() -> None:
    async def test() -> None:
        begun: list[str] = []
        places = FairPlaces(8, halves=True)
        works = [Work(places, tenant, begun) for tenant in "aaaaaabbbbccd"]
        await settle()
        assert "".join(begun) == "aaaabbcd"
        for work in works:
            work.done.set()
        await asyncio.gather(*(work.task for work in works))

    asyncio.run(test())


def test_with_one_place_tenants_take_turns() -> None:
    async def test() -> None:
        begun: list[str] = []
        places = FairPlaces(1)
        works = [Work(places, tenant, begun) for tenant in "aaaabbc"]
        await settle()
        for work in works:
            work.done.set()
        await asyncio.gather(*(work.task for work in works))
        assert "".join(begun) == "aabcaba"

    asyncio.run(test())


@settings(deadline=None, max_examples=200)
@given(
    count=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["come", "finish", "cancel"]), st.integers(0, 30)), max_size=60),
)
def test_bounds_hold_and_no_place_is_lost(count: int, steps: list[tuple[str, int]]) -> None:
    async def test() -> None:
        places = FairPlaces(count)
        works: list[Work] = []
        for step, number in steps:
            if step == "come":
                works.append(Work(places, "abc"[number % 3], []))
            elif works and step == "finish":
                works[number % len(works)].done.set()
            elif works:
                works[number % len(works)].task.cancel()
            if number % 2:
                await settle()  # else the next step comes in between
                held = Counter(work.tenant for work in works if work.has_place)
                waiting = {work.tenant for work in works if not work.has_place and not work.task.done()}
                most = max(1, count - 1)
                assert held.total() <= count
                assert max(held.values(), default=0) <= most
                assert held.total() == count or all(held[tenant] == most for tenant in waiting)
        for work in works:
            work.done.set()
        await asyncio.wait_for(asyncio.gather(*(work.task for work in works), return_exceptions=True), HANG_SECONDS)
        last = [Work(places, f"tenant {number}", []) for number in range(count)]
        await settle()
        assert all(work.has_place for work in last)
        for work in last:
            work.done.set()

    asyncio.run(test())
