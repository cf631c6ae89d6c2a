"""An application host as control knows it: which inferlets it runs, what it was told, whether it serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import inf

import msgspec

from ..application.links import HostLink
from ..application.messages import FromHost, ModelState, Pause, Ping, Pong, Report, Results, ToHost
from ..errors import HostUnavailable
from ..ids import Owner
from ..inferlets.events import InferletWait, Launch
from ..programs.warm_pool import WARM_BYTES
from ..registry.entry import Entry
from ..scheduling.turn import Progress, join_tokens
from .host_programs import RemotePrograms
from .life import Life
from .placement import HostLoad
from .replica import Replica
from .restarts import Outage

log = logging.getLogger(__name__)

LAUNCHES_UNTIL = 7 / 8
"""Share of the memory for guests at which launches are refused: the rest is for those that run."""

MOST_UNREAD = 64
"""Tokens and news of address spaces that wait for what else is told to their host, over all inferlets that read decode
runs at their end."""

MOST_UNREAD_RUNS = 1024
"""Runs of an inferlet of which it is noted that nobody reads them."""

NO_REPORT = Report(0, 0.0, 0, 0, 0)
REPORT, GREETING, QUESTION = 0, 1, 2
"""Tokens of pings: for the report that answers them, behind the greeting, and for what inferlets wait for."""


@dataclass(frozen=True)
class HostStatistics:
    """One application host, as it told last; counts since it was started last. Memory in bytes, processor time of
    guests in seconds; `warm` instances wait for a launch, and `warm_wanted` shall. `host`: its number, 0: in the
    control process."""

    host: int
    state: str
    restarts: int
    outage: Outage | None  # None: it serves
    inferlets: int
    memory_bytes: int
    guest_seconds: float
    turns: int
    preemptions: int
    warm: int
    warm_wanted: int


class Reports:
    """What a host has reported, and whether it is asked for more."""

    def __init__(self) -> None:
        self.last = NO_REPORT
        self._is_asked = False
        self._asked_at = -inf
        self._launched = 0  # since the last report
        self._launched_since_asked = 0

    @property
    def warm(self) -> int:
        """Guests that wait for a launch, as far as is known."""
        return max(0, self.last.warm - self._launched)

    def launched(self) -> None:
        """The host launches an inferlet."""
        self._launched += 1
        self._launched_since_asked += 1

    def ask(self, now: float, if_older: float) -> bool:
        """Whether to ask for a report: none is on its way, and it was not asked within so many seconds."""
        if self._is_asked or now - self._asked_at < if_older:
            return False
        self._is_asked, self._asked_at = True, now
        self._launched_since_asked = 0
        return True

    def take(self, report: Report) -> None:
        self._launched = self._launched_since_asked if self._is_asked else 0  # it may not know of these
        self.last, self._is_asked = report, False


class ResultsTold:
    """How much of what turns have told a host it has taken."""

    def __init__(self) -> None:
        self._said = self._taken = 0
        self._waiting: deque[tuple[int, Replica, int]] = deque()  # results that it has not taken, and of which turn

    @property
    def are_taken(self) -> bool:
        return self._taken == self._said

    def tell(self, replica: Replica, turn: int) -> None:
        """Results of the turn with this number are on their way."""
        self._said += 1
        self._waiting.append((self._said, replica, turn))

    def take(self, results: int) -> Mapping[Replica, int]:
        """The host has taken this many in all. The replicas that it has not heard to the end, each with the turn up to
        which it has."""
        self._taken = results
        while self._waiting and self._waiting[0][0] <= results:
            self._waiting.popleft()
        return {replica: turn - 1 for _, replica, turn in reversed(self._waiting)}  # the first that waits counts


class UnreadTokens:
    """Tokens of decode runs that nobody reads before the end, and what the address spaces of their inferlets should
    hear. They wait here for what else is told to their host, since a message costs more than a step."""

    def __init__(self) -> None:
        self._runs: dict[Owner, set[int]] = {}  # by their futures
        self._kept: dict[str, list[Results]] = {}  # by model
        self._rows = 0  # of these

    def add(self, owner: Owner, run: int) -> None:
        """Nobody reads this run before it is over. Of runs that are over already, or cancelled, nobody tells."""
        runs = self._runs.setdefault(owner, set())
        if len(runs) >= MOST_UNREAD_RUNS:
            runs.clear()  # the tokens of those that go on are told as they come
        runs.add(run)

    def forget(self, owner: Owner) -> None:
        """An inferlet has ended."""
        self._runs.pop(owner, None)

    def pass_on(self, results: Results) -> Results | None:
        """What is to be told now, with what has waited; None: it waits, too."""
        runs = results.runs
        if not self._runs and not self._kept:
            return results
        has_more = results.completions or results.endings or self._rows >= MOST_UNREAD
        if not has_more and not (
            any(map(self._is_wanted, runs.owners, runs.futures, runs.over)) or any(map(self._is_news, results.progress))
        ):
            self._kept.setdefault(results.model, []).append(results)
            self._rows += _rows(results)
            return None
        for owner, future, over in zip(runs.owners, runs.futures, runs.over, strict=True):
            if over and owner in self._runs:
                self._runs[owner].discard(future)
        kept = self._kept.pop(results.model, [])
        self._rows -= sum(map(_rows, kept))
        tokens = join_tokens([*(each.runs for each in kept), runs])
        progress = [*chain.from_iterable(each.progress for each in kept), *results.progress]
        return msgspec.structs.replace(results, progress=progress, runs=tokens)

    def _is_wanted(self, owner: Owner, future: int, over: bool) -> bool:
        return over or future not in self._runs.get(owner, ())

    def _is_news(self, progress: Progress) -> bool:
        """Whether it has more than that commands were sent, or is for an inferlet that may wait for it."""
        return bool(progress.returned or progress.bound) or not self._runs.get(progress.owner)


def _rows(results: Results) -> int:
    return len(results.runs.owners) + len(results.progress)


class AppHost:
    """One host. Messages wait for the next `flush`, so that one frame has all that was said in a turn."""

    def __init__(
        self,
        number: int,
        link: HostLink,
        max_guest_bytes: int,
        greeting: Callable[[AppHost], Sequence[ToHost]],
        on_frame: Callable[[AppHost, Sequence[FromHost]], None],
        on_lost: Callable[[AppHost, str], None],
    ) -> None:
        """`greeting`: what it is told first. `on_lost` is called with a sentence; it must `forget` what runs there."""
        self.number = number
        self.max_guest_bytes = max_guest_bytes  # 0: no bound
        self.entries: dict[int, Entry] = {}
        self.life = Life("host", self.start, self._start_failed)
        self._launching = 0
        self.reports = Reports()
        self.results = ResultsTold()
        self.unread = UnreadTokens()
        self._link = link
        self._greeting = greeting
        self._on_lost = on_lost
        self._waiting: list[ToHost] = []
        self._soon: asyncio.Handle | None = None
        self._began: asyncio.Future[None] | None = None  # its answer to the greeting
        self._end = ""  # why it was lost before it served
        self._missed: list[ToHost] = []  # what all hosts were told since the greeting, until it serves
        self._questions: deque[asyncio.Future[Sequence[InferletWait]]] = deque()  # in their order
        self.programs = RemotePrograms(self.post)
        link.on_messages = lambda frame: on_frame(self, frame)
        link.on_lost = self._lost

    # ---- life ----

    async def start(self) -> None:
        """Waits until it is there; raises HostUnavailable, ConfigError."""
        self._end = ""
        await self._link.start()
        self._began = asyncio.get_running_loop().create_future()
        self._missed = []
        self._link.send([*self._greeting(self), Ping(GREETING)])
        if not self._end:
            await self._began
        if self._end:
            raise HostUnavailable(self._end)
        self.life.serve()
        for message in self._missed:
            self.post(message)

    def take_pong(self, message: Pong) -> None:
        """The host has taken its greeting, or answers a question."""
        if message.token == QUESTION:
            question = self._questions.popleft()
            if not question.done():
                question.set_result(message.waits)
        elif message.token == GREETING and self._began is not None and not self._began.done():
            self._began.set_result(None)

    def _lost(self, reason: str) -> None:
        if not self.life.serves:
            self._end = f"application host {self.number} did not start: {reason}"
            if self._began is not None and not self._began.done():
                self._began.set_exception(HostUnavailable(self._end))
            return
        pause = self.life.failed(reason)
        when = f"is started again in {pause:.0f} s" if pause else "restarts"
        message = f"application host {self.number} died ({reason}); it {when}: launch again"
        log.warning(message)
        self.reports, self.results, self.unread = Reports(), ResultsTold(), UnreadTokens()
        self._waiting.clear()
        self._drop_questions()
        self.programs.lost()
        self.life.restart(pause)
        self._on_lost(self, message)

    def distrust(self) -> None:
        """It said what cannot be: it is killed, if it is a process of its own, and started again."""
        self._link.distrust("it said what cannot be and was killed: see the log")

    def _start_failed(self, _pause: float) -> None:
        log.error("application host %d does not serve: %s", self.number, self.life.outage)

    async def close(self) -> None:
        """Ends it. Idempotent."""
        self.life.close()
        self._drop_questions()
        self.programs.lost()
        if self._soon is not None:
            self._soon.cancel()
        await self._link.close()

    # ---- placement ----

    def load(self) -> HostLoad:
        """What placement looks at."""
        held = self.reports.last.memory_bytes
        needed = held - WARM_BYTES * self.reports.last.warm  # those that wait are for launches
        has_room = not self.max_guest_bytes or needed <= self.max_guest_bytes * LAUNCHES_UNTIL
        return HostLoad(self.life.serves, has_room, len(self.entries) + self._launching, held, self.reports.warm)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """A launch that is under way counts like an inferlet."""
        self._launching += 1
        try:
            yield
        finally:
            self._launching -= 1

    def launch(self, entry: Entry, message: Launch) -> None:
        """Launches an inferlet, which counts here until it ends."""
        self.entries[entry.number] = entry
        self.reports.launched()
        self.post(message)

    # ---- messages ----

    def post(self, message: ToHost) -> bool:
        """Says something soon, at the latest when the event loop has its next turn. False: the host is gone."""
        if not self.life.serves:
            if isinstance(message, ModelState | Pause):
                self._missed.append(message)
            return False
        self._waiting.append(message)
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.flush)
        return True

    def post_results(self, replica: Replica, turn: int, results: Results) -> None:
        """What the turn of this number says to inferlets. From now on the host is not quiet, until it says so."""
        if self.life.serves and (told := self.unread.pass_on(results)) is not None:
            self.results.tell(replica, turn)
            self._waiting.append(told)

    def flush(self) -> None:
        """Says what was posted."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._waiting and self.life.serves:
            frame, self._waiting = self._waiting, []
            self._link.send(frame)

    def ask(self, if_older: float = 0.0) -> None:
        """Asks for a fresh report, unless one is on its way, or the last one is not older than so many seconds. A host
        in this process answers at once. To another one the question goes with what else is said in this turn."""
        if self.life.serves and self.reports.ask(time.monotonic(), if_older):
            self.post(Ping(REPORT))
            if self.number == 0:
                self.flush()

    async def ask_waits(self, number: int, stack: bool) -> Sequence[InferletWait]:
        """What an inferlet waits for, or each (0); nothing if the host does not serve. `stack`: see `Ping`."""
        if not self.post(Ping(QUESTION, number, stack)):
            return ()
        question: asyncio.Future[Sequence[InferletWait]] = asyncio.get_running_loop().create_future()
        self._questions.append(question)
        self.flush()
        return await question

    def _drop_questions(self) -> None:
        for question in self._questions:
            if not question.done():
                question.set_result(())
        self._questions.clear()

    # ---- what statistics tell ----

    def statistics(self) -> HostStatistics:
        life, report = self.life, self.reports.last
        return HostStatistics(
            self.number,
            str(life.state),
            life.restarts,
            life.outage,
            len(self.entries),
            report.memory_bytes,
            report.guest_seconds,
            report.turns,
            report.preemptions,
            self.reports.warm,
            report.warm_wanted,
        )
