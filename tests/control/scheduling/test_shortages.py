"""Who gets memory when there is too little: one's own first, by class, and nobody dies for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pie_control.errors import QuotaExceeded
from pie_control.resources.contention import Action, Holder, Shortage
from pie_control.resources.kinds import PAGES
from pie_control.resources.quotas import Quota
from pie_control.scheduling import Adaptive
from pie_control.tenants.budgets import Budget
from pie_control.tenants.tenant import ServiceClass, Standing, Tenant
from tests.helpers.scheduling import Inferlet, World

BATCH = Standing(service_class=ServiceClass.BATCH)
SIZES: dict[str, Any] = {"num_pages": 10 + 16, "num_embeds": 200, "max_batch_tokens": 64}  # 10 pages


class Patient:
    """A policy that lets requests wait, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        self.asked += 1
        return ()


def ended(world: World) -> set[int]:
    return set(range(1, world.opened + 1)) - set(world.inferlets)


def full(second: int = 4) -> tuple[World, Inferlet, Inferlet]:
    """An old inferlet with two queues that holds 6 of 10 pages, and a young one that holds the others."""
    world = World(Adaptive(surplus=0), **SIZES)
    old, young = world.open(6, 100), world.open(second, 4)
    old.create_queue()
    world.drain()
    return world, old, young


# ---- one's own first ----


@pytest.mark.parametrize("order", [("alloc", "dealloc"), ("dealloc", "alloc")])
def test_nobody_is_ended_for_what_an_inferlet_gives_back_itself(order: tuple[str, str]) -> None:
    world, old, _ = full()
    calls = {"alloc": ("alloc", 1, "kvpage", 4), "dealloc": ("dealloc", 2, "kvpage", [old.pages, 6])}
    for name in order:
        old.call(*calls[name])
    world.drain()
    assert ended(world) == set()
    assert old.space.waiting == 0
    assert old.space.usage().pages == 4


def test_what_another_queue_has_used_since_comes_back_beside_a_blocked_allocation() -> None:
    world, old, _ = full()
    old.call("alloc", 1, "kvpage", 4)
    old.embed(0, 30, queue=2)
    old.forward(0, 24, queue=2)
    old.call("dealloc", 2, "kvpage", [old.pages, 6])
    world.drain()
    assert ended(world) == set()
    assert old.space.waiting == 0


def test_what_takes_several_waves_to_come_back_is_waited_for() -> None:
    world = World(Adaptive(surplus=0), **{**SIZES, "num_pages": 10 + 2, "max_batch_tokens": 8})
    old, _ = world.open(6, 100), world.open(4, 4)
    old.create_queue()
    old.embed(0, 24)
    world.drain()
    old.forward(0, 24, queue=2)  # in three waves
    old.call("alloc", 1, "kvpage", 4)
    old.call("dealloc", 2, "kvpage", [old.pages, 6])
    waves = world.drain()
    assert len(waves) == 3
    assert ended(world) == set()
    assert old.space.waiting == 0


def test_pages_that_only_commands_behind_the_allocation_use_do_not_count_as_coming() -> None:
    world, old, _ = full()
    old.embed(0, 4)
    world.drain()
    old.call("alloc", 1, "kvpage", 4)
    old.forward(0, 4)  # waits for the allocation, and uses the pages
    old.call("dealloc", 2, "kvpage", [old.pages, 6])
    world.drain()
    assert ended(world) == {2}, "otherwise all would wait for ever"
    assert old.space.waiting == 0


# ---- quotas ----


def test_an_inferlet_never_holds_more_than_its_quota_while_a_command_of_other_addresses_waits() -> None:
    world = World(Adaptive(surplus=0), quota=Quota(pages=100), **{**SIZES, "num_pages": 2000})
    one = world.open(0, 64)
    one.create_queue()
    most = 0
    for _ in range(32):
        one.embed(0, queue=2)
        pages = one.call("alloc", 1, "kvpage", 100)  # never refused: what was given back is back
        one.embed(1, queue=2)  # goes with the next wave
        one.call("dealloc", 1, "kvpage", [pages, 100])
        world.turn()
        world.answer()
        most = max(most, world.scheduler.statistics().pages.used)
    assert most <= 100


def test_what_was_given_back_counts_while_a_command_that_waits_may_use_it() -> None:
    """The bound itself is checked at every turn."""
    world = World(Adaptive(max_in_flight=1), quota=Quota(pages=100), **{**SIZES, "num_pages": 2000})
    one = world.open(0, 64)
    for _ in range(10):
        one.embed(0)
        world.turn()  # a wave is in flight: the next commands wait
        for _ in range(2):
            pages = one.call("alloc", 1, "kvpage", 40)
            one.call("forward", 1, [pages, 40], [one.embeds, 1], [pages, 40], [])
            one.call("dealloc", 1, "kvpage", [pages, 40])
            world.turn()
        message = (
            "80 KV pages held and 40 more asked for, the limit is 100; 80 of those held were given back and come "
            "when the commands that may use them have run: wait"
        )
        with pytest.raises(QuotaExceeded, match=message):
            one.call("alloc", 1, "kvpage", 40)
        world.drain()
    assert one.space.usage().pages == 0


def test_usage_tells_what_is_bound_and_not_only_what_is_owned() -> None:
    world, old, _ = full()
    old.embed(0, 30)
    old.forward(0, 24)
    old.call("dealloc", 1, "kvpage", [old.pages, 6])
    assert old.space.usage().pages == 6
    world.turn()
    assert old.space.usage().pages == 0


def test_what_was_given_back_can_be_had_again_at_once_if_nothing_waits() -> None:
    world = World(quota=Quota(pages=10, embeds=10), **SIZES)
    one = world.open(10, 10)
    world.drain()
    for _ in range(3):
        one.call("dealloc", 1, "kvpage", [one.pages, 10])
        one.call("dealloc", 1, "emb", [one.embeds, 10])
        one.pages, one.embeds = one.call("alloc", 1, "kvpage", 10), one.call("alloc", 1, "emb", 10)
        world.drain()
    assert (one.space.usage().pages, one.space.usage().embeds) == (10, 10)


# ---- classes ----


def test_an_interactive_inferlet_takes_from_an_older_batch_job() -> None:
    world = World(Adaptive(surplus=0), **SIZES)
    world.open(6, 4, BATCH)
    interactive = world.open(4, 4)
    world.drain()
    interactive.call("alloc", 1, "kvpage", 3)
    world.drain()
    assert ended(world) == {1}
    assert interactive.space.waiting == 0


def test_an_old_batch_job_waits_for_a_young_interactive_inferlet() -> None:
    world = World(Adaptive(surplus=0), **SIZES)
    batch, interactive = world.open(6, 4, BATCH), world.open(4, 4)
    world.drain()
    batch.call("alloc", 1, "kvpage", 3)
    world.drain()
    assert ended(world) == set()
    assert batch.space.waiting == 1
    world.close(interactive)
    world.drain()
    assert batch.space.waiting == 0


def test_nobody_is_ended_if_that_does_not_serve_the_request() -> None:
    world = World(Adaptive(surplus=0), **SIZES)
    _, middle, _ = world.open(6, 4), world.open(2, 4), world.open(2, 4)
    world.drain()
    middle.call("alloc", 1, "kvpage", 4)
    world.drain()
    assert ended(world) == {2}, "the youngest holds 2 only"


# ---- what does not come back, or not soon ----


def test_nobody_is_ended_for_pages_that_are_pinned() -> None:
    world = World(page_size=4, num_pages=60, max_batch_tokens=16)
    old, maker = world.open(20, 64), world.open(12, 64)
    maker.embed(0, 48)
    maker.forward(0, 48, 63)
    world.drain()
    maker.call("export_kvpage", 1, "notes", [maker.pages, 12], "")
    world.drain()
    maker.call("pin_exports", 1, "notes", "", "", 3600)
    world.drain()
    user = world.open()
    user.create_queue()
    user.call("import_kvpage", 1, "notes")
    world.drain()
    user.call("alloc", 1, "kvpage", 1)
    world.drain()
    old.call("alloc", 1, "kvpage", world.scheduler.statistics().pages.free + 2)
    world.drain()
    assert ended(world) == {1}, "the others could give one page back"


def giving_back(inferlet: Inferlet) -> None:
    """Gives all pages back behind a forward over them."""
    pages, last = [inferlet.pages, inferlet.num_pages], [inferlet.embeds + 3, 1]
    inferlet.call("forward", 1, pages, last, pages, last)
    inferlet.call("dealloc_kvpage", 1, pages)


@pytest.mark.parametrize("asks_first", [False, True])
def test_nobody_waits_for_what_a_batch_job_gives_back_behind_interactive_work(asks_first: bool) -> None:
    world = World(Adaptive(max_in_flight=1), page_size=4, num_pages=20 + 4, num_embeds=200, max_batch_tokens=16)
    busy, batch = world.open(2, 100), world.open(16, 4, BATCH)
    asking = world.open(1, 1)
    busy.embed(0, 16)
    batch.embed(0, 4)
    batch.forward(0, 4, 3)
    world.drain()

    def ask() -> None:
        asking.call("alloc", 1, "kvpage", 8)

    def fill() -> None:
        for _ in range(2):
            busy.call("forward", 1, [], [busy.embeds, 16], [], [])
        world.turn()

    fill()
    giving_back(batch)
    for do in (ask, fill) if asks_first else (fill, ask):
        do()
    fill()
    world.answer()
    fill()
    assert ended(world) == {2}
    world.drain()
    assert asking.space.waiting == 0


POOR, OTHER = Standing(tenant=Tenant("poor")), Standing(tenant=Tenant("other"))


@pytest.mark.parametrize(("asks", "standing", "victims"), [(1, OTHER, {2}), (1, POOR, set()), (3, OTHER, set())])
def test_who_would_yield_is_not_waited_for_while_it_waits_for_a_budget_of_its_own(
    asks: int, standing: Standing, victims: set[int]
) -> None:
    world = World(page_size=4, num_pages=20 + 16, num_embeds=64, max_batch_tokens=64)
    world.meters.use({"poor": Budget(tokens_per_minute=4)})
    _, held, _ = world.open(1, 4, standing), world.open(16, 4, POOR), world.open(1, 4, standing)
    held.embed(0, 4)
    held.forward(0, 4, 3)
    world.drain()
    asking = world.inferlets[asks]
    asking.call("alloc", 1, "kvpage", 10)
    giving_back(held)
    world.drain()
    assert ended(world) == victims
    assert asking.space.waiting == int(not victims)


# ---- what waiting costs ----


def test_a_wave_beside_a_thousand_blocked_allocations_asks_nobody_and_looks_at_no_request() -> None:
    policy = Patient()
    world = World(Adaptive(surplus=0), policy, **SIZES)
    first = world.open(10, 100)
    world.drain()
    for _ in range(1000):
        world.open(4)
    world.turn()
    assert policy.asked == 1
    memory = vars(world.scheduler)["_memory"]
    line = memory._lines[PAGES] = Counted(memory._lines[PAGES])
    for position in range(20):
        first.embed(position)
        assert world.send() is not None
        world.answer()
    assert policy.asked == 1
    assert line.seen <= 20 * 5, "the head of the line, whenever a wave begins"
    first.call("dealloc", 1, "kvpage", [first.pages, 4])
    world.turn()
    assert policy.asked == 2, "something has come back: the first is served, and the second is asked for"


class Counted(list[Any]):
    """A line that counts its requests that are looked at, beside the checks of the test itself."""

    seen = 0

    def __getitem__(self, place: Any) -> Any:
        self.seen += 1
        return super().__getitem__(place)
