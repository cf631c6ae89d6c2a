"""Instances that have run their program and wait for another launch of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from pie_control.programs.host import used_guests
from pie_control.programs.host.used_guests import UsedGuests, User
from pie_control.sandbox.fibers import Instance
from pie_control.server_api import ServerApi
from pie_control.tenants.tenant import Standing, Tenant
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, launch, run, started

A, B = User("one", "program"), User("two", "program")


class _Instance:
    def __init__(self) -> None:
        self.grown = 0
        self.owner: object = self
        self.closed = False

    def close(self) -> None:
        self.closed = True


def instances(count: int) -> list[Instance]:
    return [cast(Instance, _Instance()) for _ in range(count)]


def closed(*given: Instance) -> list[bool]:
    return [cast(_Instance, one).closed for one in given]


def test_the_last_one_of_a_user_is_taken_first_and_of_no_other() -> None:
    used = UsedGuests(4)
    first, second, other = instances(3)
    for instance, user in ((first, A), (other, B), (second, A)):
        assert used.keep(instance, user, 0)
    assert [used.take(A), used.take(A), used.take(A), used.take(B)] == [second, first, None, other]
    assert len(used) == 0


def test_beyond_the_most_the_one_that_was_used_longest_ago_is_freed() -> None:
    used = UsedGuests(2)
    first, second, third = instances(3)
    for instance, user in ((first, A), (second, B), (third, B)):
        assert used.keep(instance, user, 0)
    assert closed(first, second, third) == [True, False, False]
    assert not UsedGuests(0).keep(first, A, 0)


def test_one_that_rests_is_freed_and_so_are_those_of_a_program_that_is_forgotten() -> None:
    now = 0.0
    used = UsedGuests(4, lambda: now)
    first, second, third = instances(3)
    used.keep(first, A, 0)
    now = 1.0
    used.keep(second, A, 0)
    used.keep(third, User("one", "other"), 0)
    now = used_guests.REST_SECONDS
    assert [used.drop_unused(), used.drop_unused()] == [True, False]
    assert closed(first, second, third) == [True, False, False]
    used.forget("program")
    assert closed(second, third) == [True, False]
    used.close()
    assert closed(third) == [True]


def test_one_that_has_grown_over_its_launches_is_not_kept() -> None:
    used = UsedGuests(4)
    (instance,) = instances(1)
    for _ in range(2):
        assert used.keep(instance, A, used_guests.MOST_GROWN // 2)
        assert used.take(A) is instance
    assert not used.keep(instance, A, 1)


COUNTS = """
from inferlet_sdk import Context, inferlet
runs = []

@inferlet(reuse=True)
async def main(args, how: str = "", who: str = ""):
    runs.append(who)
    if how == "fails":
        raise ValueError("it fails")
    ctx = Context(args.model).fill("Once " + who)
    text = await ctx.generate_until(max_tokens=3)
    loop = [ctx.fork().generate(4)]
    loop.append(loop)  # garbage, which a later launch finds
    args.send(text)
    args.send(who)
    return [len(runs), args.environment["inferlet"], text]
"""

LEAVES = """
import asyncio, gc
from inferlet_sdk import inferlet

async def waits(future):
    await future

async def ends_late(future):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        loop = asyncio.get_running_loop()
        loop.left = loop.create_task(waits(future))
        await asyncio.sleep(0)

@inferlet(reuse=True)
async def main(args, leaves: str = ""):
    future = args.receive()
    if not leaves:
        gc.collect()
        return [future.number, await future]
    task = asyncio.create_task(ends_late(future))
    await asyncio.sleep(0)
    forgotten = [waits(future)]
    forgotten.append(forgotten)
    return [future.number]
"""
"""When `main` returns, Python has not dropped a coroutine that waits for a future, and one that was never awaited."""


def on_server(cache: Path, body: Callable[[ServerApi], Awaitable[None]], **options: Any) -> None:
    async def check() -> None:
        async with started(cache, InProcessClient(FakeModel()), **options) as server, asyncio.timeout(HANG_SECONDS):
            await body(server)

    asyncio.run(check())


def test_one_that_is_kept_holds_nothing_of_the_inferlet_that_has_ended() -> None:
    (instance,) = instances(1)
    assert instance.owner is not None
    assert UsedGuests(4).keep(instance, A, 0)
    assert instance.owner is None


READS = """
from inferlet_sdk import bindings, inferlet, traits
from inferlet_sdk.guest.command_line import parameters_of

told, ask = [], bindings.guest_source.source

def source():
    told.append(ask())
    return told[-1]

bindings.guest_source.source = source
info = traits.get_model_info(traits.available_models()[0])
before = []

@inferlet(reuse=True)
def main(args, words: list[str]):
    before.append(parameters_of(main))
    again = traits.get_model_info(args.model)
    return [len(before), before[-1] is before[0], again is info, told]
"""


def test_a_later_launch_reads_neither_the_program_nor_its_parameters_nor_the_model_again(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        found = [await run(server, READS, {"words": ["a"]}) for _ in range(2)]
        assert found == [[1, True, True, []], [2, True, True, [["test", "", ""]]]]

    on_server(guest_cache, body)


def test_later_launches_call_main_again_as_inferlets_of_their_own(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        found = [await run(server, COUNTS, {"who": who}) for who in ("a", "b", "a", "c", "a", "b")]
        assert [one[:2] for one in found] == [[n, f"i{n}"] for n in range(1, 7)]
        texts = [one[2] for one in found]
        assert texts[0] == texts[2] == texts[4] != texts[1] == texts[5]
        both = await asyncio.gather(*(run(server, COUNTS, {"who": "a"}) for _ in range(2)))
        counts = sorted(one[0] for one in both)
        assert counts in ([1, 7], [7, 8]), "if the first has ended when the second begins, that is the eighth run"
        assert all(one[2] == texts[0] for one in both)

    on_server(guest_cache, body)


def test_one_that_fails_and_one_that_does_not_ask_for_it_are_not_used_again(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        assert (await run(server, COUNTS))[0] == 1
        _, listener = await launch(server, COUNTS, {"how": "fails"})
        ended = await listener.ended
        assert ended.status == "failed"
        assert "it fails" in (ended.error or "")
        assert (await run(server, COUNTS))[0] == 1
        alone = COUNTS.replace("(reuse=True)", "")
        assert [(await run(server, alone))[0] for _ in range(2)] == [1, 1]

    on_server(guest_cache, body)


HUNGRY = """
from inferlet_sdk import inferlet
from inferlet_sdk.served.errors import served
runs = []

@inferlet(reuse=True)
@served
async def main(args):
    runs.append(1)
    if len(runs) == 2:
        bytearray(1 << 30)
    return {"runs": len(runs)}
"""


def test_one_that_ran_out_of_memory_is_not_used_again(guest_cache: Path) -> None:
    """A served program answers that the request is too large; pieces of the interpreter may have failed within."""

    async def body(server: ServerApi) -> None:
        first, refused, again = [await run(server, HUNGRY) for _ in range(3)]
        assert (first, again) == ({"runs": 1}, {"runs": 1})
        assert (refused["served_error"]["status"], refused["served_error"]["code"]) == (400, "too_large")

    on_server(guest_cache, body)


def test_garbage_of_one_launch_does_nothing_to_the_next(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        (number,) = await run(server, LEAVES, {"leaves": "some"})
        entry, listener = await launch(server, LEAVES)
        server.send(entry.id, "still here")
        ended = await listener.ended
        assert ended.error is None
        assert json.loads(ended.result or "") == [number, "still here"]

    on_server(guest_cache, body)


def test_no_instance_serves_two_tenants(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        found = []
        for name in ("one", "two", "one"):
            tenant = server.of(Standing(Tenant(name)))
            program = (await tenant.upload(COUNTS.encode(), "counts")).program
            listener = Listener()
            await tenant.launch(program, listener=listener)
            found.append((await listener.ended).result)
        assert [str(one)[:2] for one in found] == ["[1", "[1", "[2"]

    on_server(guest_cache, body)


def test_nothing_is_kept_where_no_guest_waits(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        assert [(await run(server, COUNTS))[0] for _ in range(2)] == [1, 1]

    on_server(guest_cache, body, warm_pool=0)
