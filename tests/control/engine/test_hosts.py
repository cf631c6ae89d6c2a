"""Application hosts that the test plays: placement, results, quiet, and what happens when one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pie_control.application.messages import (
    Commands,
    Compile,
    Finished,
    FromHost,
    LinkComponent,
    Logged,
    ModelState,
    Pause,
    Ping,
    Pong,
    Post,
    Prepared,
    Quiet,
    Read,
    Report,
    Results,
    Room,
    Said,
    Started,
    Stop,
    Welcome,
)
from pie_control.calls.input_image.embed_img import ImageCommand
from pie_control.calls.kind import Barrier, OpenQueue
from pie_control.config import InferletLimits
from pie_control.engine import hosts
from pie_control.engine.app_host import GREETING, AppHost
from pie_control.engine.hosts import Hosts
from pie_control.engine.loop import Loop
from pie_control.engine.model import Model
from pie_control.engine.replica import Replica
from pie_control.errors import BadProgram, BadRequest, Conflict, HostUnavailable, Overloaded, WorkerUnavailable
from pie_control.inferlets.events import Ended, Event, InferletUsage, Launch, LogLine, Message
from pie_control.inferlets.lifecycle import Status
from pie_control.inferlets.model import SpaceEvent
from pie_control.programs.store import ProgramStore
from pie_control.programs.warm_pool import WARM_BYTES, WarmPool
from pie_control.registry.entry import MAX_INBOX_BYTES, Entry
from pie_control.registry.registry import Registry
from pie_control.scheduling import Closed, Opened, Scheduler
from pie_control.tenant_api import on_one
from pie_control.tenants.tenant import Standing, Tenant
from pie_control.testing.fake_model import FakeModel
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.played_client import PlayedClient
from tests.helpers.played_host import PlayedHost

LIMITS = InferletLimits()
QUEUE, FUTURE = 1, 5


class Scene:
    """Two hosts and a model with one worker, all played."""

    def __init__(self, folder: Path) -> None:
        self.links = {number: PlayedHost() for number in (1, 2)}
        self.client = PlayedClient()
        self.model = Model("fake", [Replica(self.client, Scheduler)])
        self.registry = Registry(LIMITS, 100)
        self.loop = Loop()
        self.lost: list[object] = []
        welcome = Welcome(0, LIMITS, 1000, WarmPool(7, 9))
        models = {"fake": self.model}
        self.hosts = Hosts(self.links, welcome, self.registry, models, self.loop, self.lost.append)
        self.program = ProgramStore(folder).describe(b"def main(args): ...", "nothing")

    async def start(self) -> None:
        await self.model.start()
        self.loop.start(self.hosts, [self.model])
        await self.hosts.start(Path("/guest"))

    async def launch(self) -> Entry:
        host = await self.hosts.place()
        entry = self.registry.new(self.program, self.hosts.post, self.hosts.tell_room)
        self.hosts.launch(host, entry, ["-n"], {"a": "b"}, {})
        await asyncio.sleep(0)
        return entry

    def link(self, entry: Entry) -> PlayedHost:
        return self.links[entry.host]

    def synchronizes(self, entry: Entry) -> None:
        """The inferlet opens a queue and waits for it."""
        number = entry.number
        events: list[SpaceEvent] = [
            Opened(number),
            OpenQueue(number, QUEUE),
            Barrier(number, QUEUE, 1, 0, FUTURE, ()),
        ]
        self.link(entry).says(Commands("fake", events))

    async def report(self) -> None:
        """Asks the hosts how they are, and hears it."""
        self.hosts.statistics()
        await asyncio.sleep(0)

    def quiet(self, *links: PlayedHost, results: int = 0) -> None:
        for link in links:
            link.says(Quiet(results))


def play(folder: Path, body: Callable[[Scene], Awaitable[None]]) -> None:
    async def check() -> None:
        scene = Scene(folder)
        await scene.start()
        await asyncio.wait_for(body(scene), HANG_SECONDS)
        await scene.hosts.close()
        scene.loop.close()
        await scene.model.close()
        assert all(link.closed for link in scene.links.values())

    asyncio.run(check())


def test_a_host_is_told_first_what_it_needs(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for number, link in scene.links.items():
            assert link.take(Welcome) == [Welcome(number, LIMITS, 1000, WarmPool(7, 9), "/guest")]
            (state,) = link.take(ModelState)
            assert (state.name, state.down, state.description) == ("fake", None, scene.model.description)

    play(tmp_path, body)


def test_hosts_hear_what_a_worker_has_that_has_started_again_and_descriptions_only_if_they_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "TELL_SECONDS", 0.01)

    async def body(scene: Scene) -> None:
        for link in scene.links.values():
            link.take(ModelState)
        scene.client.next_model = lambda: FakeModel(num_pages=77)
        scene.client.fails = WorkerUnavailable("no memory")
        scene.client.may_restart.set()
        (replica,) = scene.model.replicas
        scene.client.on_lost("gone")
        monkeypatch.setattr(type(replica.life), "can_serve", property(lambda _: False))
        told: list[ModelState] = []
        while len(told) < 2:
            await asyncio.sleep(0.01)
            told += scene.links[1].take(ModelState)
        assert {state.description for state in told} == {None}
        assert all("model fake has no worker" in str(state.down) for state in told)
        monkeypatch.undo()
        scene.client.fails = None
        while not replica.life.serves:
            await asyncio.sleep(0.01)
        scene.hosts.flush()
        for link in scene.links.values():
            *_, state = link.take(ModelState)
            assert state.down is None
            assert state.description is not None
            assert state.description.num_pages == 77

    play(tmp_path, body)


def test_launches_go_to_the_host_with_the_fewest_inferlets(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entries = [await scene.launch() for _ in range(4)]
        assert [entry.host for entry in entries] == [1, 2, 1, 2]
        (first, _) = scene.links[1].take(Launch)
        assert (first.number, first.program, first.name) == (1, scene.program.hash, "nothing")
        assert (first.arguments, first.environment) == (["-n"], {"a": "b"})
        assert 0 <= first.age < 30
        scene.links[2].says(Started(4), Finished(4, Ended("finished", inferlet="i4"), 0.5))
        assert (await scene.launch()).host == 2
        assert entries[3].info().cpu_seconds == 0.5
        assert entries[3].info().host == 2

    play(tmp_path, body)


def test_a_host_without_memory_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ASK_SECONDS", 0)

    async def body(scene: Scene) -> None:
        held = 900 + 4 * WARM_BYTES  # with four guests that wait for launches
        scene.links[1].memory_bytes = held
        await scene.report()
        assert [(await scene.launch()).host for _ in range(3)] == [2, 2, 2]
        scene.links[2].memory_bytes = held
        await scene.report()
        with pytest.raises(Overloaded, match=f"all inferlets together hold {2 * held >> 20} MiB of 0 MiB: try again"):
            await scene.launch()

    play(tmp_path, body)


def test_hosts_are_not_asked_for_each_of_many_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ASK_SECONDS", 1000)

    async def body(scene: Scene) -> None:
        for link in scene.links.values():
            link.take(Ping)
        for _ in range(5):
            await scene.launch()
        await asyncio.sleep(0)
        assert [len(link.take(Ping)) for link in scene.links.values()] == [1, 1]

    play(tmp_path, body)


def test_launches_go_where_guests_wait_though_no_report_has_come(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for link in scene.links.values():
            link.mute = True
        scene.links[1].says(Report(500, 0.0, 0, 0, warm=2))
        scene.links[2].says(Report(100, 0.0, 0, 0, warm=1))
        for expected in (1, 2, 1):
            entry = await scene.launch()
            assert entry.host == expected
            scene.link(entry).says(
                Started(entry.number), Finished(entry.number, Ended("finished", inferlet=entry.id), 0.5)
            )

    play(tmp_path, body)


def test_a_record_says_what_its_host_told(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        heard: list[Event] = []
        used: list[float] = []
        scene.registry.on_use.append(lambda _, seconds: used.append(seconds))
        entry.attach(heard.append)
        assert entry.info().status == "created"
        message = Message("hello", inferlet=entry.id)
        scene.link(entry).says(
            Started(1), Said([1], ["hello"]), Report(0, 0.0, 0, 0, 0, usage=[InferletUsage(1, 1.5, 3, 4)])
        )
        info = entry.info()
        assert (info.status, info.cpu_seconds, info.pages, info.embeds) == ("running", 1.5, 3, 4)
        ended = Ended("finished", "7", inferlet=entry.id)
        scene.link(entry).says(Finished(1, ended, 2.0))
        assert heard == [message, ended]
        assert used == [1.5, 0.5]
        info = entry.info()
        assert (info.status, info.result, info.cpu_seconds, info.pages) == ("finished", "7", 2.0, 0)
        with pytest.raises(Conflict):
            entry.send("too late")

    play(tmp_path, body)


def test_the_inbox_is_bounded_in_bytes_and_room_comes_back(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        text = "x" * (1 << 20)
        for _ in range(7):
            entry.send(text)
        with pytest.raises(BadRequest, match="send it in parts"):  # there would never be room
            entry.send("x" * (MAX_INBOX_BYTES + 1))
        with pytest.raises(Overloaded, match=r"\d+ bytes of messages wait for the inferlet"):
            entry.send(text)
        await asyncio.sleep(0)
        (first, *_) = scene.link(entry).take(Post)
        assert (first.number, first.text) == (1, text)
        scene.link(entry).says(Read(1, MAX_INBOX_BYTES // 2))
        entry.send(text)
        scene.link(entry).says(Read(1, -MAX_INBOX_BYTES // 2))  # the receiver was cancelled
        with pytest.raises(Overloaded):
            entry.send(text)

    play(tmp_path, body)


def test_an_inferlet_hears_who_reads(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        entry.attach(lambda _: None)
        entry.outbox.detach()
        await asyncio.sleep(0)
        assert scene.link(entry).take(Room) == [Room(1, 0, True), Room(1, 0, False)]

    play(tmp_path, body)


def test_results_go_to_the_hosts_of_their_owners_which_are_quiet_when_they_have_taken_them(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entries = [await scene.launch() for _ in range(2)]
        one, two = (scene.link(entry) for entry in entries)
        for entry in entries:
            scene.synchronizes(entry)
        assert one.take(Results) == []
        scene.quiet(one, two)
        for entry, link in zip(entries, (one, two), strict=True):
            (results,) = link.take(Results)
            assert [(done.owner, done.future) for done in results.completions] == [(entry.number, FUTURE)]
            assert {progress.owner for progress in results.progress} == {entry.number}
        (replica,), heard = scene.model.replicas, list[tuple[int, int | None]]()
        replica.quiet = lambda host, turn: bool(heard.append((host, turn)))  # type: ignore
        assert not scene.hosts.are_quiet
        one.says(Quiet(0))  # it had not taken the results yet
        assert heard.pop() == (1, 0)
        one.says(Commands("fake", [Barrier(1, QUEUE, 2, 0, 6, ())]))
        await asyncio.sleep(0)
        (results,) = one.take(Results)
        assert [done.future for done in results.completions] == [6]
        one.says(Quiet(1))  # the second ones are on their way
        (host, turn) = heard.pop()
        assert host == 1
        assert turn is not None
        assert turn > 0
        one.says(Quiet(2))
        assert heard.pop() == (1, None)
        assert not scene.hosts.are_quiet, "the other host has not taken its results"
        two.says(Quiet(1))
        assert scene.hosts.are_quiet

    play(tmp_path, body)


def test_no_turn_is_taken_for_a_host_that_nobody_waits_for(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        link = scene.link(entry)
        scene.synchronizes(entry)
        scene.quiet(link)
        link.take(Results)
        scheduler = scene.model.replicas[0].scheduler
        assert scheduler is not None
        turns: list[float] = []
        turn = scheduler.turn
        scheduler.turn = lambda now, events: (turns.append(now), turn(now, events))[1]  # type: ignore
        scene.quiet(link, results=1)
        assert len(turns) == 1, "it had been told a result, and others might have waited for what it issues"
        scene.quiet(link, results=1)
        link.says(Quiet(1), Said([1], ["a text that goes by itself"]))
        assert len(turns) == 1

    play(tmp_path, body)


def test_the_client_is_served_after_the_wave_and_what_it_does_comes_behind(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        heard: list[str] = []

        def listener(event: Event) -> None:
            heard.append(event.status if isinstance(event, Ended) else event.text)
            if len(heard) == 1:
                scene.hosts.stop(entry, Status.TERMINATED, "by a listener")
                (stop,) = link.take(Stop)
                link.says(Finished(1, Ended(stop.status, None, stop.reason, inferlet=entry.id), 0.0))

        link = scene.link(entry)
        entry.attach(listener)
        link.says(Started(1), Said([1, 1, 1], ["1", "2", "3"]))
        assert heard == ["1", "2", "3", "terminated"]

    play(tmp_path, body)


def test_when_a_host_is_lost_its_inferlets_end_and_all_else_goes_on(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first, second = await scene.launch(), await scene.launch()
        for entry in (first, second):
            scene.link(entry).says(Started(entry.number))
            scene.synchronizes(entry)
        scene.quiet(*scene.links.values())
        (replica,) = scene.model.replicas
        assert replica.load().inferlets == 2
        scene.links[1].told.clear()
        scene.links[1].on_lost("it was killed")
        info = first.info()
        assert (info.status, info.error) == (
            "lost",
            "application host 1 died (it was killed); it restarts: launch again",
        )
        assert second.info().status == "running"
        assert replica.load().inferlets == 1
        one = scene.hosts.all[0]
        assert scene.lost == [one.programs]
        assert (await scene.launch()).host == 2, "while the other one restarts"
        await asyncio.sleep(0)
        assert (one.life.restarts, scene.links[1].starts) == (1, 2)
        assert scene.links[1].take(Welcome)
        assert (await scene.launch()).host == 1
        scene.links[2].says(Quiet(1))
        assert scene.hosts.are_quiet, "what the lost host had not taken is forgotten"
        assert replica.statistics().inferlets == 1
        assert [host.restarts for host in scene.hosts.statistics()] == [1, 0]

    play(tmp_path, body)


@pytest.mark.parametrize(
    "nonsense",
    [
        Commands("no such model", []),
        Finished(1, Ended("no such status", inferlet="i1"), 0.0),
        Finished(1, Ended("running", inferlet="i1"), 0.0),
    ],
)
def test_a_host_that_says_what_cannot_be_is_lost_alone(nonsense: FromHost, tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first, second = await scene.launch(), await scene.launch()
        for entry in (first, second):
            scene.link(entry).says(Started(entry.number))
        scene.links[1].says(nonsense)
        assert first.info().status == "lost"
        assert scene.registry.statistics().running == 1
        assert "said what cannot be" in str(first.info().error)
        assert second.info().status == "running"
        scene.synchronizes(second)
        scene.quiet(scene.links[2])
        assert scene.links[2].take(Results), "frames are taken as before"

    play(tmp_path, body)


@pytest.mark.parametrize(
    "kind", ["begins", "ends", "does something", "begins one that nobody has", "hands on a tile that is too small"]
)
def test_a_host_that_lies_about_inferlets_or_tiles_is_lost_alone(kind: str, tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first, second = await scene.launch(), await scene.launch()
        for entry in (first, second):
            scene.link(entry).says(Started(entry.number))
            scene.synchronizes(entry)
        number = second.number
        lies: dict[str, SpaceEvent] = {
            "begins": Opened(number),
            "ends": Closed(number),
            "does something": OpenQueue(number, 99),
            "begins one that nobody has": Opened(999),
            "hands on a tile that is too small": ImageCommand(
                first.number, QUEUE, 5, 0, None, (), 20, False, b"far too small", 0, ((0, 1),), 4
            ),
        }
        scene.links[1].says(Commands("fake", [OpenQueue(first.number, 99), lies[kind]]))
        assert "said what cannot be" in str(first.info().error)
        assert second.info().status == "running"
        scene.quiet(scene.links[2])
        told = scene.links[2].take(Results)
        assert [each.owner for results in told for each in results.completions] == [number]
        assert scene.model.replicas[0].load().inferlets == 1

    play(tmp_path, body)


def test_a_host_does_not_say_how_old_an_inferlet_is_or_for_whom_it_runs(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        lie = Opened(entry.number, -1.0, Standing(Tenant("other")))
        barrier = Barrier(entry.number, QUEUE, 1, 0, FUTURE, ())
        scene.link(entry).says(Commands("fake", [lie, OpenQueue(entry.number, QUEUE), barrier]))
        scene.loop.step()
        held = vars(vars(scene.model.replicas[0].scheduler)["_memory"])["_holdings"][entry.number]
        assert (held.created, held.standing) == (entry.started, entry.runs_as)

    play(tmp_path, body)


def test_what_an_inferlet_did_before_it_ended_may_come_late(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first, second = await scene.launch(), await scene.launch()
        scene.link(first).says(Started(first.number))
        scene.synchronizes(first)
        end = Finished(first.number, Ended("finished", inferlet=first.id), 0.0)
        scene.link(first).says(end, Commands("fake", [OpenQueue(first.number, 99), Closed(first.number)]))
        assert scene.lost == []
        assert scene.model.replicas[0].load().inferlets == 0
        assert second.info().status == "created"

    play(tmp_path, body)


def test_an_inferlet_whose_end_was_said_alone_holds_nothing(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        scene.link(entry).says(Started(entry.number))
        scene.synchronizes(entry)
        scene.link(entry).says(Finished(entry.number, Ended("finished", inferlet=entry.id), 0.0))
        assert scene.model.replicas[0].load().inferlets == 0

    play(tmp_path, body)


def test_a_host_says_nothing_in_the_name_of_an_inferlet_of_another(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first, second = await scene.launch(), await scene.launch()
        heard: list[Event] = []
        second.attach(heard.append)
        for entry in (first, second):
            scene.link(entry).says(Started(entry.number))
        line = LogLine(inferlet=second.id, time=1.0, stream="stdout", text="a lie")
        scene.link(first).says(Said([second.number], ["a lie"]), Logged(second.number, line))
        scene.link(second).says(Said([second.number], ["the truth"]))
        assert [event.text for event in heard if isinstance(event, Message | LogLine)] == ["the truth"]
        assert second.logs() == ()

    play(tmp_path, body)


def test_a_launch_waits_for_a_host_that_is_about_to_serve(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for link in scene.links.values():
            link.mute = True
            link.on_lost("gone")
        waiting = asyncio.create_task(scene.launch())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert len(scene.hosts.outages()) == 2
        assert "application host 1: restarting, tried once, under way now; last reason: gone" in scene.hosts.outages()
        for link in scene.links.values():
            link.mute = False
            link.says(Report(0, 0.0, 0, 0, 0))
        host = scene.hosts.all[0]
        host._began.set_result(None)  # type: ignore[union-attr]
        assert (await waiting).host == 1

    play(tmp_path, body)


async def restarting(scene: Scene) -> tuple[AppHost, PlayedHost]:
    """The first host, which is started again and has not answered its greeting."""
    host, link = scene.hosts.all[0], scene.links[1]
    link.mute = True
    link.on_lost("gone")
    link.told.clear()
    while not link.told:
        await asyncio.sleep(0.001)
    return host, link


def test_a_host_that_starts_misses_nothing_that_all_are_told(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        host, link = await restarting(scene)
        host.post(Pause("one", "", True))
        host.post(Stop(1, Status.TERMINATED, "it is for an inferlet that was lost with the host"))
        host.take_pong(Pong(GREETING))
        while not host.life.serves:
            await asyncio.sleep(0)
        host.post(Pause("one", "", False))
        host.flush()
        assert [message.on for message in link.take(Pause)] == [True, False]
        assert link.take(Stop) == []

    play(tmp_path, body)


def test_a_host_that_is_lost_as_it_becomes_ready_is_started_again(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        host, link = await restarting(scene)
        starts, link.mute = link.starts, False
        host.take_pong(Pong(GREETING))
        link.on_lost("killed")
        while not host.life.serves:
            await asyncio.sleep(0.001)
        assert link.starts == starts + 1

    play(tmp_path, body)


def test_a_launch_is_refused_if_no_host_comes_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PATIENCE_SECONDS", 0.05)

    async def body(scene: Scene) -> None:
        for link in scene.links.values():
            link.fails = "no memory"
            link.on_lost("gone")
        with pytest.raises(HostUnavailable, match=r"application host 1: restarting, tried .* last reason: no memory"):
            await scene.launch()

    play(tmp_path, body)


def test_a_host_that_cannot_begin_keeps_the_server_from_starting(tmp_path: Path) -> None:
    async def check() -> None:
        scene = Scene(tmp_path)
        scene.links[2].mute = True
        await scene.model.start()
        starting = asyncio.create_task(scene.hosts.start(Path("/guest")))
        while not scene.links[2].told:
            await asyncio.sleep(0)
        scene.links[2].on_lost("the Python guest does not fit")
        with pytest.raises(ExceptionGroup) as failed:
            await starting
        (error,) = failed.value.exceptions
        assert str(error) == "application host 2 did not start: the Python guest does not fit"
        await scene.hosts.close()

    asyncio.run(check())


def test_hosts_prepare_programs(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        programs, link = scene.hosts.all[0].programs, scene.links[1]
        compiling = asyncio.create_task(programs.compile("abc", "story", "text", Path("/folder"), "stem"))
        linking = asyncio.create_task(programs.link("abc", Path("/compiled")))
        while not link.told:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        (compile_,), (link_,) = link.take(Compile), link.take(LinkComponent)
        assert (compile_.name, compile_.text, link_.program, link_.path) == ("story", "text", "abc", "/compiled")
        link.says(Prepared(link_.request, "it is no component"), Prepared(compile_.request))
        await compiling
        with pytest.raises(BadProgram, match="it is no component"):
            await linking
        compiling = asyncio.create_task(programs.compile("abc", "story", "text", Path("/folder"), "stem"))
        await asyncio.sleep(0.01)
        link.fails = "no memory"
        link.on_lost("gone")
        with pytest.raises(Overloaded, match="has ended: try again"):
            await compiling
        with pytest.raises(Overloaded, match="has ended: try again"):
            await programs.load("def", Path("/code"))
        programs.forget("def")

    play(tmp_path, body)


def test_another_host_prepares_a_program_if_the_first_one_ends(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        compiling = asyncio.create_task(
            on_one(scene.hosts, lambda host: host.programs.compile("abc", "story", "text", Path("/folder"), "stem"))
        )
        asked: list[int] = []
        while not compiling.done():
            await asyncio.sleep(0)
            for number, link in scene.links.items():
                for request in link.take(Compile):
                    asked.append(number)
                    if len(asked) > 1:
                        link.says(Prepared(request.request))
                        continue
                    link.fails = "no memory"
                    link.on_lost("gone")
        await compiling
        assert sorted(asked) == [1, 2]

    play(tmp_path, body)


def test_a_refusal_by_a_host_that_serves_is_not_tried_elsewhere(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        tried = []

        async def refuse(host: AppHost) -> None:
            tried.append(host.number)
            raise Overloaded("all places are taken")

        with pytest.raises(Overloaded, match="all places"):
            await on_one(scene.hosts, refuse)
        assert len(tried) == 1

    play(tmp_path, body)


def test_what_an_ended_inferlet_does_goes_nowhere(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        entry = await scene.launch()
        scene.link(entry).says(Finished(1, Ended("terminated", inferlet="i1"), 0.0))
        scene.link(entry).says(Started(1), Read(1, 5), Said([1], ["late"]))
        scene.link(entry).says(Commands("fake", [Closed(1)]), Finished(1, Ended("failed", inferlet="i1"), 0.0))
        assert entry.info().status == "terminated"
        scene.hosts.post(1, "late")
        scene.hosts.stop(entry, Status.TERMINATED, "late")
        await asyncio.sleep(0)
        assert scene.link(entry).take(Post) == []
        assert scene.link(entry).take(Stop) == []

    play(tmp_path, body)


def test_a_closing_server_ends_what_runs_whether_hosts_answer_or_not(tmp_path: Path) -> None:
    async def check() -> None:
        scene = Scene(tmp_path)
        await scene.start()
        entry = await scene.launch()
        await scene.hosts.close()
        assert [stop.reason for stop in scene.link(entry).take(Stop)] == ["the server stops"]
        assert (entry.info().status, entry.info().error) == ("terminated", "the server stops")
        await scene.hosts.close()

    asyncio.run(check())
