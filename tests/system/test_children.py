"""Inferlets that launch others: results, messages, limits, and ends of all kinds, on hosts 0 and 2."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pie_control.registry.entry import Entry, InferletInfo
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers import servers
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, hosted, started
from tests.helpers.tiers import corpus
from tests.system.test_host_loss import pid_of

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\n"


async def launch(server: ServerApi, source: str, kwargs: Mapping[str, Any] | None = None) -> tuple[Entry, Listener]:
    return await servers.launch(server, IMPORTS + source, kwargs)


async def run(server: ServerApi, source: str, kwargs: Mapping[str, Any] | None = None) -> Any:
    return await servers.run(server, IMPORTS + source, kwargs)


def check(cache: Path, test: Callable[[ServerApi], Awaitable[None]], hosts: int = 0, **options: Any) -> None:
    async def main() -> None:
        client = InProcessClient(FakeModel(num_pages=4096))
        async with started(cache, client, hosts=hosts, **options) as server, asyncio.timeout(HANG_SECONDS):
            await test(server)
            await nothing_runs(server)

    asyncio.run(main())


async def nothing_runs(server: ServerApi) -> None:
    while server.statistics().inferlets.running:
        await asyncio.sleep(0.005)
    while any(one.scheduler.inferlets for model in server.statistics().models.values() for one in model):
        await asyncio.sleep(0.005)


def infos(server: ServerApi, parent: str) -> list[InferletInfo]:
    return [info for info in server.inferlets() if info.parent == parent]


async def until_children(server: ServerApi, parent: str, count: int) -> list[InferletInfo]:
    """Waits until so many of them run."""
    while len(found := [one for one in infos(server, parent) if one.status == "running"]) < count:
        await asyncio.sleep(0.002)
    return found


async def until_it_waits_for(server: ServerApi, inferlet: str, what: str) -> None:
    """Waits until this is among what it waits for."""
    while what not in ((info := await server.look_at(inferlet)).waits_for or ""):
        assert info.status in ("created", "running"), info
        await asyncio.sleep(0.002)


FAMILY = """
async def main(args, role="root", number=0):
    if role == "child":
        text = await Context(args.model).fill(f"child {number} ").generate_until(max_tokens=4)
        for part in range(3):
            await args.send(f"{number}.{part}")
        return [number, await args.receive(), args.environment["parent"], len(text) > 0]
    children = [launch(role="child", number=number) for number in range(8)]
    for number, child in enumerate(children):
        await child.send(f"to {number}")
    async def follow(child):
        return [message async for message in child]
    said = await gather(*(follow(child) for child in children))
    results = await gather(*children)
    return [said, results, args.environment["inferlet"]]
"""


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_children_work_and_answer(guest_cache: Path, hosts: int) -> None:
    async def test(server: ServerApi) -> None:
        (entry, listener), other = await launch(server, FAMILY), await launch(server, FAMILY)
        said, results, me = json.loads((await listener.ended).result or "null")
        assert me == entry.id
        assert said == [[f"{number}.{part}" for part in range(3)] for number in range(8)]
        assert results == [[number, f"to {number}", me, True] for number in range(8)]
        children = infos(server, me)
        assert len(children) == 8
        assert {child.host for child in children} == {entry.host}
        assert {child.program for child in children} == {entry.program.hash}
        assert listener.messages == [], "what children send goes to their parent"
        assert (await other[1].ended).status == "finished"

    check(guest_cache, test, hosts)


def test_a_program_is_found_by_name_and_hash(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        helper = "def main(args):\n    return [args.argv, args.environment.get('a')]\n"
        stored = await server.upload(helper.encode(), "the helper")
        source = f"""
async def main(args):
    children = [launch(name, "-x", "y", environment={{"a": "b"}}) for name in ("the helper", {stored.program!r})]
    return await gather(*children)
"""
        assert await run(server, source) == [[["-x", "y"], "b"]] * 2

    check(guest_cache, test)


def test_what_cannot_be_launched_is_told_by_join(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        source = """
async def main(args):
    told = []
    for program in ("nobody has this", "ab"):
        child = launch(program)
        await child.send("lost")
        try:
            await child
        except PieError as error:
            told.append([error.code, error.message, await child.receive()])
    return [told, traits.usage().futures]
"""
        told, futures = await run(server, source)
        assert told == [
            ["not-found", "no program 'nobody has this': upload it first, or see the list of programs", None],
            ["not-found", "no program 'ab': upload it first, or see the list of programs", None],
        ]
        assert futures == 0

    check(guest_cache, test)


def test_no_room_for_further_inferlets_is_told(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        source = """
async def main(args, child=False):
    if child:
        return await args.receive()
    children = [launch(child=True) for _ in range(4)]
    ends = []
    for one in children[3:]:
        try:
            await one.join()
        except Exhausted as error:
            ends.append(error.message)
    for one in children:
        one.cancel()
    return ends
"""
        assert await run(server, source) == ["4 inferlets run, which is the limit: try again when some have ended"]

    check(guest_cache, test, max_inferlets=4)


ENDS = """
async def main(args, how=""):
    if how == "error":
        raise ValueError("an error of its own")
    if how == "loop":
        while True:
            pass
    if how == "wait":
        await args.receive()
    if how == "exit":
        import sys
        sys.exit("no more")
    told = []
    for how, limits in (("error", {}), ("exit", {}), ("loop", {"cpu_seconds": 0.05}), ("wait", {})):
        child = launch(how=how, **limits)
        if how == "wait":
            child.cancel()
            child.cancel()
        end = await child.join()
        try:
            await child
        except ChildFailed as error:
            assert error.end == end
        child.cancel()
        told.append([end.status, (end.error or "").split("\\n")[-1], end.result])
    return told
"""


LOOP = ": does a loop have no end? (--cpu-seconds)"


@pytest.mark.parametrize("hosts", corpus([0, 2], lambda _: "any"))
def test_ends_of_children_are_told(guest_cache: Path, hosts: int) -> None:
    async def test(server: ServerApi) -> None:
        error, exit_, loop, cancelled = await run(server, ENDS)
        assert error == ["failed", "ValueError: an error of its own", None]
        assert exit_ == ["failed", "no more", None]
        assert loop == ["exceeded", f"used more than 0.05 s of processor time, with its family{LOOP}", None]
        assert cancelled[0] == "terminated"
        assert "its parent cancelled it" in cancelled[1]

    check(guest_cache, test, hosts)


HOLDS = """
async def main(args, depth=2, how=""):
    context = Context(args.model).fill("something to remember " * 20)
    await context.generate_until(max_tokens=3)
    children = [launch(depth=depth - 1) for _ in range(2)] if depth else []
    if not how:
        await args.receive()
    await args.send("holds")
    await args.receive()
    if how == "raise":
        raise ValueError("an error of its own")
"""


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
@pytest.mark.parametrize("how", ["return", "raise", "terminate"])
def test_children_end_with_their_parent(guest_cache: Path, how: str, hosts: int) -> None:
    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, HOLDS, {"how": how})
        await listener.until_messages(1)
        children = await until_children(server, entry.id, 2)
        grandchildren = [one for child in children for one in await until_children(server, child.id, 2)]
        if how == "terminate":
            server.terminate(entry.id, "enough")
        else:
            entry.send("end")
        ended = (await listener.ended).status
        assert ended == {"return": "finished", "raise": "failed", "terminate": "terminated"}[how]
        for info in (*children, *grandchildren):
            child = server.inferlet(info.id).info()
            assert child.status == "terminated"
            assert "its parent" in (child.error or "")

    check(guest_cache, test, hosts)


def test_a_child_that_is_terminated_is_told_to_its_parent(guest_cache: Path) -> None:
    source = """
async def main(args, child=False):
    if child:
        await args.send("here")
        await args.receive()
    one = launch(child=True)
    await args.send(await one.receive())
    end = await one.join()
    return [end.inferlet, end.status, end.error, await one.receive()]
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        await listener.until_messages(1)
        (child,) = infos(server, entry.id)
        server.terminate(child.id, "by hand")
        assert json.loads((await listener.ended).result or "") == [child.id, "terminated", "by hand", None]

    check(guest_cache, test, 1)


def test_a_lost_host_takes_the_family_and_nobody_else(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        (lost, told), (other, kept) = (
            await launch(server, HOLDS, {"how": "x"}),
            await launch(server, HOLDS, {"how": "x"}),
        )
        for one, listener in ((lost, told), (other, kept)):
            await listener.until_messages(1)
            await until_children(server, one.id, 2)
        assert lost.host != other.host
        os.kill(pid_of(server, lost.host), signal.SIGKILL)
        assert (await told.ended).status == "lost"
        assert {info.status for info in infos(server, lost.id)} == {"lost"}
        assert {info.status for info in infos(server, other.id)} == {"running"}
        other.send("end")
        assert (await kept.ended).status == "finished"

    check(guest_cache, test, 2)


# ---- limits ----


def test_a_family_holds_no_more_pages_than_its_root_may(guest_cache: Path) -> None:
    source = """
async def main(args, pages=0):
    queue = traits.create_queue(args.model)
    if pages:
        try:
            traits.alloc_kvpage(queue, pages)
        except QuotaExceeded as error:
            return error.message
        await args.send("holds")
        return await args.receive()
    traits.alloc_kvpage(queue, 40)
    first, second = launch(pages=50), launch(pages=50, max_pages=49)
    told = [await first.receive(), await second]
    third = launch(pages=11)
    told.append(await third)
    try:
        traits.alloc_kvpage(queue, 11)
    except QuotaExceeded as error:
        told.append(error.message)
    held = traits.usage().pages
    await first.send("end")
    await first
    traits.alloc_kvpage(queue, 60)
    return [told, held]
"""

    async def test(server: ServerApi) -> None:
        told, held = await run(server, source)
        assert held == 40
        assert told[0] == "holds"
        assert told[1].startswith("0 KV pages held and 50 more asked for, the limit is 49")
        assert told[2].startswith("90 KV pages of the family held and 11 more asked for, the limit is 100; parent and")
        assert told[3].startswith("90 KV pages held and 11 more asked for, the limit is 100; 50 of those are held by")

    check(guest_cache, test, max_pages=100)


def test_a_family_uses_no_more_processor_time_than_its_root_may(guest_cache: Path) -> None:
    source = """
async def main(args, child=False):
    if child:
        while True:
            pass
    ends = [(await launch(child=True).join()).status for _ in range(3)]
    return ends
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        ended = await listener.ended
        assert (ended.status, ended.result) == ("finished", '["exceeded", "exceeded", "exceeded"]')
        used = [info.cpu_seconds for info in infos(server, entry.id)]
        assert 0.7 <= used[0] <= 1.0
        assert max(used[1:]) <= 0.2, "of a budget that is used up, nothing has come back"

    check(guest_cache, test, cpu_seconds=1.0, cpu_refill=0.0)


def test_memory_is_counted_over_the_family(guest_cache: Path) -> None:
    source = """
async def main(args, child=False):
    if child:
        held = []
        for _ in range(30):
            held.append(bytearray(1 << 20))
            await asyncio.sleep(0)
        await args.send("holds")
        return await args.receive()
    children = [launch(child=True) for _ in range(4)]
    await gather(*(child.receive() for child in children))  # each holds its part, or has ended
    for child in children:
        child.cancel()
    return [(await child.join()).error for child in children]
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        errors = json.loads((await listener.ended).result or "[]")
        over = [error for error in errors if f"{entry.id} and its children hold" in error]
        assert over
        assert all("MiB of 96 MiB" in error for error in over)

    check(guest_cache, test, memory_bytes=96 << 20)


def test_children_and_generations_are_bounded(guest_cache: Path) -> None:
    source = """
async def main(args, depth=0, many=False):
    if many:
        children = []
        try:
            for _ in range(100):
                children.append(launch(depth=-1))
        except QuotaExceeded as error:
            for child in children:
                await child.send("end")
            await gather(*children)
            again = launch(depth=-1)
            await again.send("end")
            return [len(children), error.message, await again]
    if depth < 0:
        return await args.receive()
    try:
        return await launch(depth=depth + 1)
    except QuotaExceeded as error:
        return [depth, error.message]
"""

    async def test(server: ServerApi) -> None:
        depth, message = await run(server, source)
        assert depth == 4
        assert "4 generations above this inferlet" in message
        count, message, again = await run(server, source, {"many": True})
        assert (count, again) == (7, "end")
        assert message == "it has 7 children that run, the limit is 7 (max_children): join some first"

    check(guest_cache, test, max_children=7)


FUNCTIONS = """
def double(args, number: int, *more, times=2):
    return [number * times, *more]

async def shout(args):
    await args.send((await args.receive()).upper())

async def main(args):
    child = launch(shout)
    await child.send("hello")
    return [await child.receive(), await launch(double, 4), await launch(double, "5", "x", [1], times=3)]
"""


MAPPED = """
from inferlet_sdk import map_children
async def twice(args, value):
    return [value, value]
async def main(args):
    found = [one async for one in map_children(twice, ["--x", 2, None], at_once=2)]
    return found, sorted([one async for one in map_children(twice, range(9), at_once=4, ordered=False)])[8]
"""


def test_children_are_mapped(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        _, listener = await launch(server, MAPPED)
        ended = await listener.ended
        assert (ended.error, ended.result) == (None, '[[["--x", "--x"], [2, 2], [null, null]], [8, 8]]')

    check(guest_cache, test)


def test_a_function_of_the_program_is_a_child(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        _, listener = await launch(server, FUNCTIONS)
        ended = await listener.ended
        assert (ended.error, ended.result) == (None, '["HELLO", [8], [15, "x", [1]]]')

    check(guest_cache, test)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("launch(max_pages=4097)", "limits: max_pages is 4097; a child may have 0 to 4096, as its parent"),
        (
            "from inferlet_sdk import bindings\n    "
            f"bindings.children.launch('', [], '{json.dumps({'limits': {'max_pages': 10**400}})}')",
            "limits: max_pages is 100000000",
        ),
        ("launch(cpu_seconds=1e9)", "limits: cpu_seconds is 1000000000.0; a child may have 0 to "),
        (
            "launch(colour={3})",
            "colour: give text, a number, True, False, None, or lists and dicts of these, not set {3}",
        ),
        ("launch('x' * 2000000)", "2000000 bytes, more than 1048576: send them later"),
        ("launch(environment={'a': 1})", "environment['a']: give text, not int 1"),
        ("await launch(colour=3)", "main has no parameter 'colour'"),
        ("launch(main.__class__)", "program: give the name or hash of a program, or a function of this one, not type"),
        ("launch(broadcast)", "program: broadcast does not stand at the top of the main file of this program"),
        ("traits.join(77)", "there is no child 77"),
        ("traits.send_child(77, '')", "there is no child 77"),
        ("traits.receive_child(77)", "there is no source 77"),
        ("traits.cancel_child(77)", "there is no child 77"),
        ("traits.drop_child(77)", "there is no handle 77"),
        ("traits.join('x')", "child: give what `launch` returned"),
    ],
)
def test_bad_calls_are_refused(guest_cache: Path, call: str, why: str) -> None:
    async def test(server: ServerApi) -> None:
        _, listener = await launch(server, f"async def main(args):\n    {call}\n")
        assert why in ((await listener.ended).error or "")

    check(guest_cache, test)


# ---- messages ----


@pytest.mark.parametrize("hosts", corpus([0, 1], lambda _: "any"))
def test_who_sends_waits_for_who_receives_slowly(guest_cache: Path, hosts: int) -> None:
    source = """
async def main(args, child=False):
    if child:
        with subscribe("go") as go:
            await args.send("ready")
            await go.next()
        count = 0
        while await args.receive() != "end":
            count += 1
        return count
    one = launch(child=True)
    await one.receive()
    sent = 0
    async def send_all():
        nonlocal sent
        while sent < 20:
            sent += 1
            await one.send("x" * 100_000)
    sending = asyncio.create_task(send_all())
    await args.receive()
    sending.cancel()
    await broadcast("go", "go")
    await one.send("end")
    return [sent, await one]
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        await until_it_waits_for(server, entry.id, "to take messages")
        entry.send("enough")
        sent, heard = json.loads((await listener.ended).result or "null")
        assert 2 <= sent <= 4, "256 KiB may be on their way"
        assert heard == sent

    check(guest_cache, test, hosts)


def test_a_child_waits_for_a_parent_that_does_not_read(guest_cache: Path) -> None:
    source = """
async def main(args, child=False):
    if child:
        for number in range(30):
            await args.send("x" * 50_000)
            args.log(str(number))
        return "done"
    one = launch(child=True)
    await args.receive()
    count = len([message async for message in one])
    return [count, await one]
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        (info,) = await until_children(server, entry.id, 1)
        await until_it_waits_for(server, info.id, "its client to read")
        assert 3 <= len(server.inferlet(info.id).logs()) <= 7
        entry.send("read")
        assert (await listener.ended).result == '[30, "done"]'

    check(guest_cache, test)


def test_clients_may_write_to_a_child_and_read_its_log(guest_cache: Path) -> None:
    source = """
async def main(args, child=False):
    if child:
        args.log("a line")
        return [await args.receive(), await args.receive()]
    one = launch(child=True)
    await one.send("from the parent")
    await args.send("launched")
    return await one
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        await listener.until_messages(1)
        (info,) = await until_children(server, entry.id, 1)
        child = server.inferlet(info.id)
        child.send("from a client")
        assert json.loads((await listener.ended).result or "") == ["from the parent", "from a client"]
        assert [line.text for line in child.logs()] == ["info: a line"]
        assert vars(child)["_inbox_bytes"] == 0

    check(guest_cache, test, 1)


def test_everything_is_given_back(guest_cache: Path) -> None:
    source = """
async def main(args, child=False):
    if child:
        await args.send("one")
        await args.send("two")
        return await args.receive()
    one = launch(child=True)
    pending = [one.receive(), traits.join(one), traits.join(one)]
    pending[0].cancel()
    pending[1].cancel()
    try:
        async with asyncio.timeout(0.001):
            await one.join()
    except TimeoutError:
        pass
    told = [await one.receive()]
    waits = one.receive()
    await traits.wait([waits])
    waits.cancel()  # gives the message back
    told.append(await one.receive())
    await one.send("bye")
    told.append((await pending[2]).result)
    one.close()
    one.close()
    dropped = launch(child=True)
    await dropped.receive()
    number = dropped.handle
    del dropped
    await asyncio.sleep(0.01)
    try:
        traits.join(number)
    except NotFound:
        told.append("gone")
    await args.send("dropped")
    await args.receive()
    return [told, traits.usage().futures]
"""

    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, source)
        await listener.until_messages(1)
        dropped = infos(server, entry.id)[-1]
        assert dropped.status == "running", "a child that is dropped goes on"
        parent: Any = hosted(server, entry)
        assert list(parent.kin.children) == [int(dropped.id[1:])]
        entry.send("end")
        assert json.loads((await listener.ended).result or "") == [["one", "two", "bye", "gone"], 0]

    check(guest_cache, test)


def test_without_asyncio_nothing_is_awaited(guest_cache: Path) -> None:
    source = """
def main(args, child=False):
    if child:
        args.send("hello")
        return args.receive().result()
    one = launch(child=True)
    one.send("a")
    return [list(one), one.result()]
"""

    async def test(server: ServerApi) -> None:
        assert await run(server, source) == [["hello"], "a"]

    check(guest_cache, test)
