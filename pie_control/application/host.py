"""An application host: the loop that runs inferlets, wherever it stands.

What control says comes in frames, `take`; what inferlets did, and what their clients shall hear, goes back in frames,
one for each time that they have run until all wait. The host decides nothing that concerns others: it refuses or
accepts calls, and hands them on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import host_api
from ..host_api.guest import Guest, Reach, quota_of
from ..images.reader import ImageReader
from ..inferlets.events import Ended, Launch, LogLine, Span
from ..inferlets.lifecycle import Status
from ..inferlets.mailbox import size_of
from ..inferlets.manager import InferletManager
from ..inferlets.model import ModelView
from ..inferlets.relations.log_lines import LogLines
from ..inferlets.relations.topics import Reached, Topics
from ..programs.host.programs import HostPrograms
from ..programs.warm_pool import WarmPool
from ..resources.quotas import Ledgers
from ..sandbox.contract import Contract
from ..scheduling.turn import RunTokens
from ..services.http.outbound import HttpClient
from . import messages as wire
from .links import ControlLink
from .rounds import Rounds

REPORT_SECONDS = 0.25
"""Between reports of what inferlets use, while something changes."""


Preparing = Coroutine[Any, Any, None]
MakePrograms = Callable[[Contract, int, WarmPool], HostPrograms]
"""What makes the programs of a host, as `HostPrograms` does."""


class Host:
    """Runs the inferlets that control launches here. Belongs to the thread of one event loop."""

    def __init__(self, welcome: wire.Welcome, link: ControlLink, make_programs: MakePrograms = HostPrograms) -> None:
        """Raises ConfigError if the Python guest does not fit."""
        limits = welcome.limits
        self._link = link
        self._programs = make_programs(host_api.contract(), limits.memory_bytes, welcome.warm_pool)
        self._programs.start(Path(welcome.guest))
        self._preparing: set[asyncio.Task[None]] = set()
        self._ledgers = Ledgers(quota_of(limits), welcome.max_guest_bytes)
        self._models: dict[str, ModelView] = {}
        self._http = HttpClient(welcome.http_allow)
        self._topics = Topics(self)
        self._lines = LogLines(lambda number, line: self._say(wire.Logged(number, line)), lambda: link.unsent)
        self._rounds = Rounds(self._speak)
        self._images = ImageReader()
        reach = Reach(self._http, self._topics, self, self._images)
        self._inferlets = InferletManager(
            self._programs,
            limits,
            welcome.max_guest_bytes,
            lambda inferlet: Guest(inferlet, self._models, reach),
            self._rounds.wake,
            self,
        )
        self._rounds.runner = self._inferlets.runner
        self._said: list[wire.FromHost] = []
        self._results = 0  # messages with results, since the beginning
        self._reporter: asyncio.TimerHandle | None = None
        self._takers: dict[type, Callable[[Any], None]] = {
            wire.ModelState: self._model_state,
            wire.Compile: self._compile,
            wire.LoadCode: lambda message: self._bring(message, self._programs.load),
            wire.LinkComponent: lambda message: self._bring(message, self._programs.link),
            wire.Forget: lambda message: self._programs.forget(message.program),
            Launch: self._launch,
            wire.NotLaunched: self._not_launched,
            wire.Post: self._post,
            wire.Stop: self._stop,
            wire.Room: self._room,
            wire.Pause: self._pause,
            wire.Results: self._take_results,
            wire.Published: self._published,
            wire.Broadcasted: self._broadcasted,
            wire.Ping: self._ping,
        }
        link.on_messages = self.take
        self._pauses = bool(welcome.host)  # of a process of its own
        if self._pauses:
            link.on_pause = self._rounds.let_go
        self._inferlets.start()

    # ---- what control says ----

    def take(self, messages: Sequence[wire.ToHost]) -> None:
        """Takes a frame. What it answers goes with what a round says, if one comes at once: an inferlet that waits for
        its turn would wait for a frame more, and control for two."""
        if self._pauses:
            self._rounds.hold()
        for message in messages:
            try:
                self._takers[type(message)](message)
            except Exception as error:
                self._failed(getattr(message, "number", 0), error)
        if self._said and not self._rounds.is_due:
            self._speak(quiet=False)

    def _failed(self, number: int, error: Exception) -> None:
        """An inferlet could not take what it was told, by a defect of the server: it ends, and no other one. What is
        for nobody alone is raised."""
        inferlet = self._inferlets.try_running(number)
        if inferlet is None:
            raise error
        self._inferlets.fail(inferlet, error)

    def _model_state(self, message: wire.ModelState) -> None:
        if (description := message.description) is not None:
            if message.name not in self._models:
                self._models[message.name] = ModelView(description, self._ledgers)
            self._models[message.name].description = description
        model = self._models[message.name]
        model.down = message.down
        model.set_adapters(message.adapters)

    def _compile(self, message: wire.Compile) -> None:
        file = Path(message.folder), message.stem
        self._prepare(message.request, self._programs.compile(message.program, message.name, message.text, *file))

    def _bring(self, message: wire.LoadCode | wire.LinkComponent, work: Callable[[str, Path], Preparing]) -> None:
        self._prepare(message.request, work(message.program, Path(message.path)))

    def _prepare(self, request: int, work: Preparing) -> None:
        async def prepare() -> None:
            error = None
            try:
                await work
            except Exception as failure:  # of whatever kind: control waits for an answer
                error = str(failure)
            self._link.send([wire.Prepared(request, error)])

        task = asyncio.get_running_loop().create_task(prepare())
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    def _launch(self, message: Launch) -> None:
        parent, child = None, None
        if message.parent:
            parent = self._inferlets.try_running(message.parent)
            child = parent.kin.launched(message.child) if parent else None
            if child is None:
                reason = f"its parent i{message.parent} has ended, or wants it no more"
                self.ended(message.number, Ended("terminated", None, reason, inferlet=f"i{message.number}"), 0.0)
                return
        self._inferlets.launch(message, parent, child)

    def _not_launched(self, message: wire.NotLaunched) -> None:
        if parent := self._inferlets.try_running(message.parent):
            parent.kin.refused(message.child, message.error)

    def _post(self, message: wire.Post) -> None:
        if inferlet := self._inferlets.try_running(message.number):
            inferlet.mail.post(message.text, blobs=message.blobs)

    def _room(self, message: wire.Room) -> None:
        inferlet = self._inferlets.try_running(message.number)
        if inferlet is not None and inferlet.parent is None:  # what children send is read by their parents
            inferlet.mail.sender.room(message.taken_bytes, message.read)

    def _pause(self, message: wire.Pause) -> None:
        runner, payer = self._inferlets.runner, (message.tenant, message.key)
        if message.on:
            runner.pause(payer)
        else:
            runner.resume(payer)

    def _stop(self, message: wire.Stop) -> None:
        if inferlet := self._inferlets.try_running(message.number):
            self._inferlets.end(inferlet, Status(message.status), message.reason)

    def _take_results(self, message: wire.Results) -> None:
        self._results += 1
        model, find = self._models[message.model], self._inferlets.try_running
        if message.runs:
            self._advance_runs(model, message.runs)
        model.hear(message.completions, message.progress, message.endings, self._failed)
        for completion in message.completions:
            if inferlet := find(completion.owner):
                try:
                    inferlet.waits.resolve(completion.future, completion.value)
                except Exception as error:
                    self._failed(completion.owner, error)
        for ending in message.endings:
            if inferlet := find(ending.owner):
                self._inferlets.end(inferlet, Status(ending.reason), str(ending.error))
        self._rounds.owe()

    def _advance_runs(self, model: ModelView, runs: RunTokens) -> None:
        """Tokens of decode runs reach their programs."""
        find, errors, scores = self._inferlets.try_running, runs.errors, runs.scores
        rows = zip(runs.owners, runs.futures, runs.tokens, runs.over, strict=True)
        for row, (owner, future, token, over) in enumerate(rows):
            inferlet = find(owner)
            if inferlet is None:
                continue
            try:
                if row in errors:
                    model.run_failed(owner, future, errors[row])
                    inferlet.waits.resolve(future, errors[row])
                elif model.run_advanced(owner, future, (tokens := (token,)), over):
                    inferlet.waits.advance_run(future, tokens, over, (scores[row],) if row in scores else ())
            except Exception as error:
                self._failed(owner, error)

    def _published(self, message: wire.Published) -> None:
        self._topics.published(message.broadcast, message.sender, message.topic, message.text, message.subscribers)

    def _broadcasted(self, message: wire.Broadcasted) -> None:
        self._topics.confirmed(message.number, message.future)
        if inferlet := self._inferlets.try_running(message.number):
            inferlet.waits.conclude(message.future, Reached(message.reached))

    def _ping(self, message: wire.Ping) -> None:
        self._report()
        waits = () if message.waits_of is None else self._inferlets.waits(message.waits_of, message.stack)
        self._said.append(wire.Pong(message.token, waits))

    # ---- what it says ----

    def _speak(self, quiet: bool) -> None:
        """What was done and said since the last frame; `quiet`: all inferlets wait."""
        frame: list[wire.FromHost] = [
            wire.Commands(name, events) for name, model in self._models.items() if (events := model.take_events())
        ]
        if quiet:
            frame.append(wire.Quiet(self._results))
            self._report_later()
        if self._said:
            frame += self._said
            self._said.clear()
        if frame:
            self._link.send(frame)
            self._lines.sent()

    def runs(self, number: int) -> None:
        """An inferlet has its first turn."""
        self._said.append(wire.Started(number))

    def received(self, number: int, size: int, blob_bytes: int) -> None:
        """It has received posted messages of this size."""
        self._say(wire.Read(number, size, blob_bytes))

    def reads_at_end(self, number: int, run: int) -> None:
        """It reads nothing of a decode run before that is over."""
        self._say(wire.ReadAtEnd(number, run))

    def says(self, number: int, text: str) -> None:
        """It says something to its client. What several say in a row is one message."""
        last = self._said[-1] if self._said else None
        if not isinstance(last, wire.Said):
            last = wire.Said([], [])
            self._say(last)
        last.numbers.append(number)
        last.texts.append(text)

    def logs(self, number: int, line: LogLine) -> None:
        """It has a line for its log."""
        self._lines.add(number, line)

    def ended(self, number: int, event: Ended, cpu_seconds: float) -> None:
        """The last that it says."""
        self._lines.ended(number)
        self._say(wire.Finished(number, event, cpu_seconds))

    def did(self, number: int, span: Span) -> None:
        """It has done something of which its trace tells."""
        if self._lines.has_room(number, size_of(span.operation) + size_of(span.name) + size_of(span.error)):
            self._say(wire.Did(number, span))

    def launches(
        self, parent: int, child: int, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """It wants a child."""
        self._say(wire.LaunchChild(parent, child, program, arguments, environment))

    def ends(self, number: int, reason: str) -> None:
        """Its parent wants it no more. It ends when nobody has a turn."""

        def end() -> None:
            if inferlet := self._inferlets.try_running(number):
                self._inferlets.end(inferlet, Status.TERMINATED, reason)

        asyncio.get_running_loop().call_soon(end)

    def subscribes(self, number: int, topic: str, on: bool) -> None:
        """It wants what comes to a topic, or does not any more."""
        self._say(wire.Subscribe(number, topic, on))

    def broadcasts(self, number: int, future: int, topic: str, text: str) -> None:
        """It says something to a topic."""
        self._say(wire.Broadcast(number, future, topic, text))

    def confirms(self, broadcast: int) -> None:
        """The queues that a broadcast has joined have room."""
        self._say(wire.Confirm(broadcast))

    def _say(self, message: wire.FromHost) -> None:
        self._said.append(message)
        self._rounds.wake()

    # ---- what control may want to know ----

    def _report_later(self) -> None:
        if self._reporter is None:
            self._reporter = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report_now)

    def _report_now(self) -> None:
        self._reporter = None
        self._report()
        self._speak(quiet=False)

    def _report(self) -> None:
        runner = self._inferlets.runner
        runner.memory.settle()  # what was freed since the last turn may be room for a launch
        self._said.append(
            wire.Report(
                self._inferlets.guest_bytes,
                runner.guest_seconds,
                runner.turns,
                runner.preemptions,
                self._programs.warm,
                self._programs.warm_wanted,
                self._inferlets.take_usage(),
            )
        )

    @property
    def is_idle(self) -> bool:
        """Whether no inferlet can run now."""
        return not self._inferlets.runner.has_work

    def close(self) -> None:
        """Ends all inferlets. Idempotent."""
        for task in self._preparing:
            task.cancel()
        self._inferlets.close()
        self._http.close()
        self._speak(quiet=False)
        self._rounds.close()
        if self._reporter is not None:
            self._reporter.cancel()
        self._images.close()
        self._programs.close()
