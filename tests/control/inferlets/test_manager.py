"""Launching, ending and limits, with a model that is not real."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pie_control.errors import BadRequest, Conflict, Overloaded, UnknownName, WorkerError
from pie_control.host_api.guest import Guest
from pie_control.inferlets import manager
from pie_control.inferlets.events import Ended, Event
from pie_control.inferlets.inferlet import Inferlet
from pie_control.inferlets.model import ModelView
from pie_control.inferlets.runner import Runner
from pie_control.programs.host import python_guests
from pie_control.programs.host.programs import HostPrograms
from pie_control.registry import registry
from pie_control.registry.entry import Entry
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.tables.embeds import EmbedTable
from pie_control.resources.tables.pages import PageTable
from pie_control.sandbox.fibers import Instance
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import RunWave, WaveDone
from tests.helpers.garbage import without_collections
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, launch, run, started

HELLO = "def main(args):\n    return 'hello'\n"
WAIT = "async def main(args):\n    await args.send('ready')\n    return await args.receive()\n"
LOOP = "def main(args):\n    while True:\n        pass\n"


def on_server(cache_dir: Path, body: Callable[[ServerApi], Awaitable[None]], **options: Any) -> None:
    async def check() -> None:
        gc.collect()  # what tests before have left would be freed while this one's memory grows
        async with started(cache_dir, InProcessClient(FakeModel()), **options) as server, asyncio.timeout(HANG_SECONDS):
            await body(server)

    asyncio.run(check())


def has_finished(inferlet: Entry) -> bool:
    return inferlet.info().status == "finished"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_the_warm_pool_fills_and_fills_again(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        def warm() -> int:
            return server.statistics().inferlets.warm

        await until(lambda: warm() == 2)
        assert await run(server, HELLO) == "hello"
        await until(lambda: warm() == 2)
        assert [await run(server, HELLO) for _ in range(4)] == ["hello"] * 4

    on_server(guest_cache, body, warm_pool=2)


def test_the_pool_fills_quickly_while_there_is_no_inferlet(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "UPKEEP_SECONDS", 1000)
    monkeypatch.setattr(manager, "IDLE_UPKEEP_SECONDS", 1000)

    async def body(server: ServerApi) -> None:
        await until(lambda: server.statistics().inferlets.warm == 2)

    on_server(guest_cache, body, warm_pool=2)


def test_a_server_that_is_closed_makes_no_more_guests(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would free them."""
    slices = 0

    def warm_one(*_: object) -> bool:
        nonlocal slices
        slices += 1
        return True

    monkeypatch.setattr(HostPrograms, "warm_one", warm_one)

    async def check() -> None:
        async with started(guest_cache, InProcessClient(FakeModel())):
            await until(lambda: slices > 10)
        before = slices
        await asyncio.sleep(20 * manager.EMPTY_UPKEEP_SECONDS)
        assert slices == before

    asyncio.run(check())


def test_guests_are_made_ahead_beside_an_endless_loop_but_not_between_launches(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "UPKEEP_SECONDS", 0.0005)
    monkeypatch.setattr(manager, "MOST_POSTPONED", sys.maxsize)
    slices: list[bool] = []  # whether an inferlet wanted a turn

    def warm_one(programs: HostPrograms, has_room: bool) -> bool:
        slices.append(runners[0].has_ready)
        return make_ahead(programs, has_room)

    def new_runner(*given: Any) -> Runner:
        runners.append(Runner(*given))
        return runners[-1]

    runners: list[Runner] = []
    make_ahead = HostPrograms.warm_one
    monkeypatch.setattr(HostPrograms, "warm_one", warm_one)
    monkeypatch.setattr(manager, "Runner", new_runner)

    async def body(server: ServerApi) -> None:
        await launch(server, LOOP)
        await until(lambda: server.statistics().inferlets.warm == 2)
        assert await asyncio.gather(*(run(server, HELLO) for _ in range(20))) == ["hello"] * 20
        await until(lambda: server.statistics().inferlets.warm == 2)
        assert len(slices) > 2
        assert not any(slices)

    on_server(guest_cache, body, warm_pool=2, cpu_seconds=1000)


def test_instances_that_are_done_are_freed_at_leisure_up_to_a_number(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "MOST_UNFREED", 2)
    for pause in ("UPKEEP_SECONDS", "EMPTY_UPKEEP_SECONDS"):
        monkeypatch.setattr(manager, pause, 1000)  # there is no leisure
    monkeypatch.setattr(manager, "LARGE_BYTES", 1 << 40)
    closed: list[Instance] = []
    close = Instance.close

    def note(instance: Instance) -> None:
        closed.append(instance)
        close(instance)

    async def body(server: ServerApi) -> None:
        assert await run(server, HELLO) == "hello"
        await until(lambda: server.is_idle)
        monkeypatch.setattr(Instance, "close", note)
        for _ in range(5):
            assert await run(server, HELLO) == "hello"
        await until(lambda: server.is_idle)
        assert len(set(closed)) == 4  # of six, two wait still
        await server.close()
        assert len(set(closed)) == 6

    on_server(guest_cache, body, warm_pool=0)


def test_an_inferlet_that_does_nothing_for_too_long_ends(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.01)

    async def body(server: ServerApi) -> None:
        _, listener = await launch(server, WAIT)
        assert await listener.ended == Ended("exceeded", None, "was idle for more than 0.2 s", inferlet="i1")

    on_server(guest_cache, body, idle_seconds=0.2)


def test_who_is_about_to_have_a_turn_is_not_idle(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers: list[manager.InferletManager] = []
    start = manager.InferletManager.start

    def note(one: manager.InferletManager) -> None:
        managers.append(one)
        start(one)

    monkeypatch.setattr(manager.InferletManager, "start", note)

    async def body(server: ServerApi) -> None:
        entry, listener = await launch(server, WAIT)
        await listener.until_messages(1)
        (host,) = managers
        inferlet = host.try_running(entry.number)
        assert inferlet is not None
        inferlet.life.last_turn = float("-inf")
        server.send(entry.id, "hello")
        host.runner.ready(inferlet)
        host._sweep()
        assert (await listener.ended).status == "finished"

    on_server(guest_cache, body)


GENERATE = """
from inferlet_sdk import Context

async def main(args, stream):
    generation = Context(args.model).fill("Once").generate(max_tokens=4)
    return await (args.stream(generation) if stream else generation.whole())
"""


class SlowModel(FakeModel):
    """Answers no wave before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()

    def run(self, wave: RunWave) -> WaveDone:
        assert self.may_answer.wait(HANG_SECONDS)
        return super().run(wave)


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_for_the_model_is_not_idle(stream: bool, guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.01)

    async def check() -> None:
        model = SlowModel()
        async with (
            started(guest_cache, InProcessClient(model), idle_seconds=1.0) as server,
            asyncio.timeout(HANG_SECONDS),
        ):
            _, generating = await launch(server, GENERATE, {"stream": stream})
            await until(lambda: server.statistics().models["fake"][0].scheduler.waves_in_flight > 0)
            _, idle = await launch(server, WAIT)
            assert (await idle.ended).status == "exceeded"
            model.may_answer.set()
            assert (await generating.ended).status == "finished"

    asyncio.run(check())


def test_a_loop_ends_at_its_limit_while_others_go_on(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        _, looping = await launch(server, LOOP)
        assert await run(server, HELLO) == "hello"
        assert await looping.ended == Ended(
            "exceeded",
            None,
            "used more than 0.3 s of processor time: does a loop have no end? (--cpu-seconds)",
            inferlet="i1",
        )
        assert server.statistics().inferlets.ended["exceeded"] == 1

    on_server(guest_cache, body, cpu_seconds=0.3)


GROW = """
async def main(args, mebibytes):
    kept = []
    for _ in range(mebibytes):
        kept.append(bytes([1]) * (1 << 20))
    await args.send("grown")
    await args.receive()
    kept.append(bytes([1]) * (32 << 20))
"""
"""Takes memory, waits for a message, and takes more."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
def test_the_sum_of_memory_is_bounded(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        modest, modest_heard = await launch(server, WAIT)
        await modest_heard.until_messages(1)
        large, large_heard = await launch(server, GROW, {"mebibytes": 100})
        await large_heard.until_messages(1)
        grower, grower_heard = await launch(server, GROW, {"mebibytes": 40})
        await grower_heard.until_messages(1)
        with pytest.raises(Overloaded, match=r"all inferlets together hold \d+ MiB of 160 MiB"):
            await launch(server, HELLO)
        large.send("more")
        ended = await large_heard.ended
        assert ended.status == "exceeded"
        assert "all inferlets together hold" in (ended.error or "")
        grower.send("more")
        assert (await grower_heard.ended).status == "finished"
        modest.send("text")
        assert (await modest_heard.ended).status == "finished"
        assert await run(server, HELLO) == "hello"

    on_server(guest_cache, body, max_guest_bytes=160 << 20, warm_pool=0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
def test_a_modest_inferlet_does_not_end_for_a_large_one(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        _, large = await launch(server, GROW, {"mebibytes": 120})
        await large.until_messages(1)
        _, modest = await launch(server, GROW, {"mebibytes": 50})
        ended = await large.ended
        assert ended.status == "exceeded"
        assert "of it by this one" in (ended.error or "")
        await modest.until_messages(1)

    on_server(guest_cache, body, max_guest_bytes=160 << 20, warm_pool=0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
@pytest.mark.parametrize("by", ["launch", "message"])
def test_a_modest_inferlet_does_not_end_for_blobs_of_another_one(guest_cache: Path, by: str) -> None:
    async def body(server: ServerApi) -> None:
        holder, waits = Listener(), b"import asyncio\n\nasync def main(args):\n    await asyncio.sleep(1000)\n"
        program = (await server.upload(waits)).program
        blobs = {"photo": bytes([1]) * (100 << 20)}
        large = await server.launch(program, contents=blobs if by == "launch" else {}, listener=holder)
        if by == "message":
            large.send("", dict(blobs))
        blobs.clear()
        _, modest = await launch(server, GROW, {"mebibytes": 80})
        ended = await holder.ended
        assert ended.status == "exceeded"
        assert "of it by this one" in (ended.error or "")
        await modest.until_messages(1)

    on_server(guest_cache, body, max_guest_bytes=160 << 20, warm_pool=0, max_blob_bytes=128 << 20)


LEAVES_RESULTS = """
import asyncio
from inferlet_sdk import Pages, traits

async def main(args):
    queue, kv = traits.create_queue(args.model), Pages()
    embeds = traits.alloc_emb(queue, 256)
    traits.embed_txt(queue, [65] * 256, list(range(256)), embeds)
    traits.forward(queue, kv, embeds, kv, embeds)
    left = [traits.get_next_dists(queue, embeds, 259) for _ in range(200)]  # of half a MiB each
    await traits.synchronize(queue)
    await args.send("there")
    await asyncio.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
def test_who_leaves_many_results_ends_before_a_smaller_one_when_memory_is_short(guest_cache: Path) -> None:
    """The host is a process of its own: here, results fit into what the allocator has kept of tests before."""

    async def body(server: ServerApi) -> None:
        _, large = await launch(server, LEAVES_RESULTS)
        await large.until_messages(1)
        _, modest = await launch(server, GROW, {"mebibytes": 80})
        await asyncio.wait({large.ended, modest.ended}, return_when=asyncio.FIRST_COMPLETED)
        ended = large.ended.result()
        assert ended.status == "exceeded"
        assert "of it by this one" in (ended.error or "")

    on_server(guest_cache, body, hosts=1, max_guest_bytes=160 << 20, warm_pool=0, max_pending_bytes=256 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
def test_guests_that_wait_are_freed_before_an_inferlet_ends_for_memory(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_guests, "MOST_REHEARSED", 0)
    dropped: list[HostPrograms] = []
    drop = HostPrograms.drop_one

    def drop_one(programs: HostPrograms) -> bool:
        dropped.append(programs)
        return drop(programs)

    monkeypatch.setattr(HostPrograms, "drop_one", drop_one)

    async def body(server: ServerApi) -> None:
        await until(lambda: server.statistics().inferlets.warm == 16)
        _, large = await launch(server, GROW, {"mebibytes": 148})
        await large.until_messages(1)  # it has what the others held
        assert len(dropped) > 1

    on_server(guest_cache, body, max_guest_bytes=160 << 20, warm_pool=16)


NEEDS_A_MODEL = """
from inferlet_sdk import WorkerFailed, traits

def main(args, how="uncaught"):
    try:
        traits.create_queue(args.model)
    except WorkerFailed:
        if how == "uncaught":
            raise
    if how == "other":
        raise ValueError("its own")
    return "goes on"
"""


@pytest.mark.parametrize(("how", "status"), [("uncaught", "lost"), ("other", "failed"), ("caught", "finished")])
def test_one_that_finds_no_worker_is_lost_as_those_that_had_one(
    how: str, status: str, guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_worker(*_: object) -> None:
        raise WorkerError("the worker of model fake died\nits last words")

    async def body(server: ServerApi) -> None:
        monkeypatch.setattr(ModelView, "open", no_worker)
        _, listener = await launch(server, NEEDS_A_MODEL, {"how": how})
        assert (await listener.ended).status == status

    on_server(guest_cache, body)


def test_no_more_than_the_most_run_at_a_time(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        first, listener = await launch(server, WAIT)
        await launch(server, WAIT)
        with pytest.raises(Overloaded, match="2 inferlets run"):
            await launch(server, WAIT)
        first.send("go")
        await listener.ended
        assert await run(server, HELLO) == "hello"

    on_server(guest_cache, body, max_inferlets=2)


def test_a_hundred_wait_at_a_time_and_the_next_launches_work(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        waiting = [await launch(server, WAIT) for _ in range(100)]
        for _, listener in waiting:
            await listener.until_messages(1)
        assert await run(server, HELLO) == "hello"
        for number, (inferlet, _) in enumerate(waiting):
            inferlet.send(str(number))
        ended = [await listener.ended for _, listener in waiting]
        assert [one.result for one in ended] == [f'"{number}"' for number in range(100)]

    on_server(guest_cache, body)


def test_terminating_twice_is_terminating_once(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        inferlet, listener = await launch(server, WAIT)
        await listener.until_messages(1)
        server.terminate(inferlet.id, "first")
        server.terminate(inferlet.id, "second")
        assert await listener.ended == Ended("terminated", None, "first", inferlet="i1")
        assert server.statistics().inferlets.ended["terminated"] == 1
        with pytest.raises(Conflict, match="has ended"):
            inferlet.send("too late")

    on_server(guest_cache, body)


def test_an_inferlet_can_be_terminated_before_its_first_turn(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        inferlet, listener = await launch(server, WAIT)
        server.terminate(inferlet.id, "at once")
        assert (await listener.ended).status == "terminated"

    on_server(guest_cache, body)


@pytest.mark.parametrize("whom", ["itself", "another"])
def test_a_listener_may_terminate(whom: str, guest_cache: Path) -> None:
    """It is called from within a turn of the inferlet that it hears."""

    async def body(server: ServerApi) -> None:
        ended: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        other, waiting = await launch(server, WAIT)
        await waiting.until_messages(1)

        def listener(event: Event) -> None:
            if isinstance(event, Ended):
                ended.set_result(event)
            else:
                server.terminate(inferlet.id if whom == "itself" else other.id, "by a listener")

        program = (await server.upload(WAIT.encode(), "wait")).program
        inferlet = await server.launch(program, listener=listener)
        if whom == "itself":
            assert await ended == Ended("terminated", None, "by a listener", inferlet="i2")
        else:
            assert await waiting.ended == Ended("terminated", None, "by a listener", inferlet="i1")
            inferlet.send("it goes on")
            assert await ended == Ended("finished", '"it goes on"', inferlet="i2")

    on_server(guest_cache, body)


def test_a_listener_that_fails_does_not_keep_an_inferlet_from_ending(guest_cache: Path) -> None:
    def fails(_event: Event) -> None:
        raise RuntimeError("of the listener")

    async def body(server: ServerApi) -> None:
        program = (await server.upload(HELLO.encode(), "hello")).program
        inferlet = await server.launch(program, listener=fails)
        await until(partial(has_finished, inferlet))
        assert server.inferlet(inferlet.id).info().result == '"hello"'

    on_server(guest_cache, body)


def test_nothing_of_an_inferlet_that_has_ended_waits_for_a_full_collection(guest_cache: Path) -> None:
    """A host makes one a minute. Until then memory of results and tables would be missing for others."""
    source = (
        "from inferlet_sdk import *\n"
        "async def main(args):\n"
        "    context = Context(args.model).fill('text')\n"
        "    await context.next_dist()\n"
        "    traits.synchronize(context)\n"  # which it does not await
    )

    async def body(server: ServerApi) -> None:
        await run(server, HELLO)
        with without_collections(Inferlet, Guest, AddressSpace, PageTable, EmbedTable) as left:
            for _ in range(3):
                _, listener = await launch(server, source)
                assert (await listener.ended).status == "finished"
            await until(lambda: not left())

    on_server(guest_cache, body)


def test_ended_inferlets_are_kept_within_bounds(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KEPT_ENDED", 3)

    async def body(server: ServerApi) -> None:
        ended = []
        for _ in range(5):
            inferlet, listener = await launch(server, HELLO)
            await listener.ended
            ended.append(inferlet.id)
        assert [info.id for info in server.inferlets()] == ended[2:]
        with pytest.raises(UnknownName, match="ended long ago"):
            server.inferlet(ended[0])

    on_server(guest_cache, body)


def test_what_ended_inferlets_keep_is_bounded_in_bytes(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KEPT_ENDED_BYTES", 250_000)
    talk = "def main(args):\n    args.send('x' * 100_000)\n"

    async def body(server: ServerApi) -> None:
        program = (await server.upload(talk.encode(), "talk")).program
        for _ in range(5):
            inferlet = await server.launch(program)
            await until(partial(has_finished, inferlet))
        assert len(server.inferlets()) == 2
        heard: list[Event] = []
        server.inferlet(inferlet.id).attach(heard.append)
        assert len(heard) == 2

    on_server(guest_cache, body)


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

    async def body(server: ServerApi) -> None:
        assert "1026 bytes are more" in await run(server, program)
        inferlet, _ = await launch(server, WAIT)
        with pytest.raises(BadRequest, match="more than 1024"):
            await server.launch(inferlet.program.hash, ["世" * 400])

    on_server(guest_cache, body, max_message_bytes=1024)


def test_a_stopping_server_ends_what_runs(guest_cache: Path) -> None:
    async def check() -> None:
        async with started(guest_cache, InProcessClient(FakeModel())) as server:
            _, listener = await launch(server, WAIT)
            await listener.until_messages(1)
        await server.close()
        assert await listener.ended == Ended("terminated", None, "the server stops", inferlet="i1")

    asyncio.run(check())
