"""All application hosts: where inferlets are launched, what hosts say, and what happens when one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec.structs import replace

from ..application import messages as wire
from ..application.links import HostLink
from ..errors import HostUnavailable, Overloaded
from ..ids import Owner
from ..inferlets.events import Ended, InferletUsage, InferletWait, Launch
from ..inferlets.lifecycle import Status, check_transition
from ..inferlets.mailbox import NO_BLOBS
from ..programs.program_host import ProgramHost
from ..registry.entry import Entry
from ..registry.registry import Registry
from ..scheduling import Turn
from ..scheduling.turn import RunTokens
from .app_host import AppHost, HostStatistics
from .life import PATIENCE_SECONDS
from .loop import Loop
from .model import Model
from .placement import place_on_host
from .replica import Replica
from .topics import TopicExchange

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
"""Between looks at models that are down: what inferlets are told of them changes with time."""
ASK_SECONDS = 0.01
"""Between questions for how hosts are, if many inferlets are launched."""
ANSWER_SECONDS = 0.5
"""Who asks what inferlets wait for does without hosts that do not answer in this time."""
RETRY_SECONDS = 0.05
"""A launch that waits for a host looks again after this time."""


class Hosts:
    """The hosts, and the way between them and the models. Belongs to the thread of one event loop."""

    def __init__(
        self,
        links: Mapping[int, HostLink],
        welcome: wire.Welcome,
        registry: Registry,
        models: Mapping[str, Model],
        loop: Loop,
        on_lost: Callable[[ProgramHost], None],
    ) -> None:
        """`links`: to each host, by its number. `welcome`: what each is told first, but for its number and the guest.
        `on_lost` hears that what was brought to a host is gone."""
        self._registry = registry
        self._models = models
        self._loop = loop
        self._welcome = welcome
        self._on_lost = on_lost
        self.on_child: Callable[[AppHost, wire.LaunchChild], None]
        """Hears that an inferlet wants a child."""
        self.all = [
            AppHost(number, link, welcome.max_guest_bytes, self._greeting, self._take_frame, self._lost)
            for number, link in links.items()
        ]
        self._homes: dict[int, AppHost] = {}  # by inferlet
        numbered = {host.number: host for host in self.all}
        self.topics = TopicExchange(lambda number, message: numbered[number].post(message))
        self.greetings: Callable[[], Iterable[wire.ToHost]] = tuple
        """What a host is told beside, when it starts."""
        self._told: dict[str, wire.ModelState] = {}  # of each model, with its description
        self._teller: asyncio.TimerHandle | None = None
        self._frames: deque[tuple[AppHost, Sequence[wire.FromHost]]] = deque()
        self._has_commands = False  # since the last step of the loop
        self._takers: dict[type, Callable[[AppHost, Any], None]] = {
            wire.Commands: self._take_commands,
            wire.Quiet: self._take_quiet,
            wire.Started: self._take_started,
            wire.Said: lambda host, message: self._registry.said(host.number, message.numbers, message.texts),
            wire.Logged: lambda host, message: self._registry.logged(host.number, message.number, message.line),
            wire.Finished: self._take_finished,
            wire.Read: self._take_read,
            wire.ReadAtEnd: lambda host, message: host.unread.add(message.number, message.run),
            wire.Did: lambda host, message: self._registry.did(host.number, message.number, message.span),
            wire.LaunchChild: lambda host, message: self.on_child(host, message),
            wire.Subscribe: self._take_subscribe,
            wire.Broadcast: self._take_broadcast,
            wire.Confirm: lambda host, message: self.topics.confirm(host.number, message.broadcast),
            wire.Report: self._take_report,
            wire.Pong: AppHost.take_pong,
            wire.Prepared: lambda host, message: host.programs.answered(message),
        }

    async def start(self, guest: Path) -> None:
        """Waits for all hosts; `guest` is the compiled Python guest, and the models serve. Raises HostUnavailable,
        ConfigError."""
        self._welcome = replace(self._welcome, guest=str(guest))
        self._told = {name: _state(model) for name, model in self._models.items()}
        async with asyncio.TaskGroup() as tasks:
            for host in self.all:
                tasks.create_task(host.start())

    def _greeting(self, host: AppHost) -> list[wire.ToHost]:
        welcome = replace(self._welcome, host=host.number)
        return [welcome, *self._told.values(), *self.greetings()]

    async def close(self) -> None:
        """Ends all inferlets and hosts. Idempotent."""
        if self._teller is not None:
            self._teller.cancel()
        for entry in [entry for host in self.all for entry in host.entries.values()]:
            self.stop(entry, Status.TERMINATED, "the server stops")
        for host in self.all:
            await host.close()
        for entry in [entry for host in self.all for entry in host.entries.values()]:
            self._end(entry, Ended(Status.TERMINATED, None, "the server stops", inferlet=entry.id))

    # ---- inferlets ----

    async def place(self) -> AppHost:
        """The host for a new inferlet. Waits for a short time if one is about to serve. Raises Overloaded,
        HostUnavailable."""
        until = monotonic() + PATIENCE_SECONDS
        while True:
            for host in self.all:
                host.ask(if_older=ASK_SECONDS)
            loads = [host.load() for host in self.all]
            chosen = place_on_host(loads)
            if chosen is not None:
                return self.all[chosen]
            if any(load.serves for load in loads):
                held, most = sum(host.reports.last.memory_bytes for host in self.all), self._welcome.max_guest_bytes
                told = f"{held >> 20} MiB of {most * len(self.all) >> 20} MiB"
                raise Overloaded(f"all inferlets together hold {told}: try again when some have ended")
            if monotonic() > until or not any(host.life.can_serve for host in self.all):
                raise HostUnavailable("; ".join(self.outages()) or "the server stops")
            await asyncio.sleep(RETRY_SECONDS)

    def launch(
        self,
        host: AppHost,
        entry: Entry,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        blobs: Mapping[str, bytes],
        parent: int = 0,
        child: int = 0,
    ) -> None:
        """Launches an inferlet on a host that has its program. `parent`, `child`: see `LaunchChild`."""
        entry.host = host.number
        self._homes[entry.number] = host
        self._registry.launched(entry)
        if entry.traceparent:
            environment = {**environment, "traceparent": entry.traceparent}
        age = monotonic() - entry.started
        standing, number = entry.runs_as, entry.number
        name, hash_ = entry.program.title, entry.program.hash
        host.launch(entry, Launch(number, hash_, name, arguments, environment, age, standing, blobs, parent, child))

    def post(self, number: int, text: str, blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """Sends a message to an inferlet."""
        if host := self._homes.get(number):
            host.post(wire.Post(number, text, blobs))

    def tell_room(self, number: int, taken_bytes: int, read: bool) -> None:
        """Tells an inferlet how much of what it has sent was taken, and whether a client reads."""
        if host := self._homes.get(number):
            host.post(wire.Room(number, taken_bytes, read))

    def stop(self, entry: Entry, status: Status, reason: str) -> None:
        """Ends an inferlet: its host says when that is done, one in this process at once. Nothing happens if it has
        ended."""
        if host := self._homes.get(entry.number):
            host.post(wire.Stop(entry.number, status, reason))
            host.flush()

    async def ask_waits(self, entry: Entry | None = None, stack: bool = False) -> Mapping[Owner, InferletWait]:
        """What an inferlet waits for, or each, by number: as their hosts say within ANSWER_SECONDS. `stack`: see
        `Ping`."""
        home = None if entry is None else self._homes.get(entry.number)
        hosts = self.all if entry is None else [home] if home else []
        asked = [asyncio.ensure_future(host.ask_waits(entry.number if entry else 0, stack)) for host in hosts]
        done, late = await asyncio.wait(asked, timeout=ANSWER_SECONDS) if asked else ((), ())
        for question in late:
            question.cancel()
        return {wait.number: wait for answer in done for wait in answer.result()}

    # ---- what hosts say ----

    def _take_frame(self, host: AppHost, frame: Sequence[wire.FromHost]) -> None:
        """Frames that come while one is taken, since a client answers at once, are taken behind it. A host is not
        trusted: one that says what cannot be is lost, and nothing else."""
        self._frames.append((host, frame))
        if len(self._frames) > 1:
            return
        while self._frames:
            host, frame = self._frames[0]
            try:
                for message in frame:
                    self._takers[type(message)](host, message)
            except Exception:
                log.exception("application host %d said what cannot be", host.number)
                host.distrust()
            finally:
                self._frames.popleft()
                if self._has_commands:  # no `Quiet` came behind them
                    self._has_commands = False
                    self._loop.wake()

    def _take_commands(self, host: AppHost, message: wire.Commands) -> None:
        self._models[message.model].take(host.number, host.entries, message.events)
        self._has_commands = True

    def _take_quiet(self, host: AppHost, message: wire.Quiet) -> None:
        """A step, unless nobody has waited for this host: tokens that go to clients by themselves ask for none."""
        heard = host.results.take(message.results)
        replicas = [replica for model in self._models.values() for replica in model.replicas]
        matters = [replica.quiet(host.number, heard.get(replica)) for replica in replicas]
        if self._has_commands or any(matters):
            self._has_commands = False
            self._loop.step()

    def _take_started(self, host: AppHost, message: wire.Started) -> None:
        if entry := host.entries.get(message.number):
            entry.runs()

    def _take_finished(self, host: AppHost, message: wire.Finished) -> None:
        if entry := host.entries.get(message.number):
            check_transition(entry.status, Status(message.event.status))
            self._registry.uses(entry, InferletUsage(entry.number, message.cpu_seconds, 0, 0))
            self._end(entry, message.event)

    def _take_report(self, host: AppHost, message: wire.Report) -> None:
        host.reports.take(message)
        for usage in message.usage:
            if entry := host.entries.get(usage.number):
                self._registry.uses(entry, usage)

    def _take_read(self, host: AppHost, message: wire.Read) -> None:
        if entry := host.entries.get(message.number):
            entry.received(message.size, message.blob_bytes)

    def _take_subscribe(self, host: AppHost, message: wire.Subscribe) -> None:
        if entry := host.entries.get(message.number):
            self.topics.subscribe(host.number, entry.standing.tenant.name, message)

    def _take_broadcast(self, host: AppHost, message: wire.Broadcast) -> None:
        if entry := host.entries.get(message.number):
            self.topics.broadcast(host.number, entry.standing.tenant.name, message)

    def _end(self, entry: Entry, event: Ended) -> None:
        """What a host has not closed that says an end, or is lost, is closed here."""
        for model in self._models.values():
            model.close_inferlet(entry.number)
        self.topics.ended(entry.number)
        host = self._homes.pop(entry.number)
        del host.entries[entry.number]
        host.unread.forget(entry.number)
        self._registry.ended(entry, event)

    def _lost(self, host: AppHost, message: str) -> None:
        """Its inferlets end, and their pages come back."""
        self._on_lost(host.programs)
        self.topics.lost(host.number)
        for entry in list(host.entries.values()):
            self._end(entry, Ended(Status.LOST, None, message, inferlet=entry.id))
        self._loop.wake()

    # ---- what models say ----

    @property
    def are_quiet(self) -> bool:
        """Whether all inferlets wait, and no result is on its way to them."""
        return all(host.results.are_taken for host in self.all)

    def post_results(self, model: str, replica: Replica, turn: Turn) -> None:
        """Sends each host, with the next `flush`, what a turn says to its inferlets."""
        if not (turn.completions or turn.progress or turn.endings or turn.runs):
            return
        if len(self.all) == 1:
            results = wire.Results(model, turn.completions, turn.progress, turn.endings, turn.runs)
            self.all[0].post_results(replica, turn.number, results)
            return
        runs = _runs_by_host(turn.runs, self._homes)
        parts: dict[AppHost, tuple[list[Any], list[Any], list[Any]]] = {host: ([], [], []) for host in runs}
        homes = self._homes
        for place, values in enumerate((turn.completions, turn.progress, turn.endings)):
            for value in values:
                host = homes.get(value.owner)  # type: ignore[attr-defined]
                if host is not None:
                    if host not in parts:
                        parts[host] = ([], [], [])
                    parts[host][place].append(value)
        for host, part in parts.items():
            host.post_results(replica, turn.number, wire.Results(model, *part, runs.get(host, RunTokens())))

    def flush(self) -> None:
        """Sends what was posted."""
        for host in self.all:
            host.flush()

    def tell_states(self) -> None:
        """Tells all hosts which models are down, which adapters they have, and what a worker that has started again
        has for inferlets, if that has changed; again and again while one is down."""
        if self._teller is not None:
            self._teller.cancel()
            self._teller = None
        for name, model in self._models.items():
            before, state = self._told.get(name), _state(model)
            if state != before:
                self._told[name] = state
                is_same = before is not None and before.description is state.description
                told = replace(state, description=None) if is_same else state
                for host in self.all:
                    host.post(told)
        if any(one.life.outage for model in self._models.values() for one in model.replicas):
            self._teller = asyncio.get_running_loop().call_later(TELL_SECONDS, self.tell_states)

    # ---- inspection ----

    @property
    def can_launch(self) -> bool:
        """Whether a host serves."""
        return any(host.life.serves for host in self.all)

    def outages(self) -> tuple[str, ...]:
        """One line for each host that does not serve."""
        return tuple(
            f"application host {host.number}: {host.life.outage}" for host in self.all if host.life.outage is not None
        )

    def statistics(self) -> tuple[HostStatistics, ...]:
        """What the hosts' last reports say; new ones are asked for."""
        for host in self.all:
            host.ask()
        return tuple(host.statistics() for host in self.all)


def _state(model: Model) -> wire.ModelState:
    down = model.why_down() if model.is_down else None
    return wire.ModelState(model.name, model.told, down, model.adapters.numbers())


def _runs_by_host(runs: RunTokens, homes: Mapping[Owner, AppHost]) -> dict[AppHost, RunTokens]:
    """The rows of each host's inferlets, in their order."""
    rows: dict[AppHost, list[int]] = {}
    for row, owner in enumerate(runs.owners):
        if host := homes.get(owner):
            rows.setdefault(host, []).append(row)
    return {host: runs.part(of_host) for host, of_host in rows.items()}
