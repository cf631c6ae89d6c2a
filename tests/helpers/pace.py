"""Inferlets and a worker that take time, by a clock of their own: how many steps does a scheduler let them do?

The worker takes `fixed` seconds for a wave and `each` for a token; it runs one wave at a time. An inferlet asks for a
step, waits for its token, works on it for a while, and asks again. The inferlets of a host either share one processor,
in the order in which they were told, or each works (or waits for something) by itself. A host sends what its inferlets
have issued at the end of every `slice` seconds, or when all of them wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from pie_control.resources.quotas import Quota
from pie_control.scheduling import DispatchPolicy, Event, HostQuiet, Opened, Scheduler
from pie_control.tenants.tenant import DEFAULT_STANDING, Standing
from pie_inference.protocol import Forward, RunWave, Sample, SampleResult, WaveDone

from .scheduling import Inferlet, describe


@dataclass(eq=False)
class Guest:
    """A program that steps for ever. `think`: seconds that it works on a token. `ahead`: steps in flight at most."""

    inferlet: Inferlet
    think: float
    host: int
    ahead: int = 1
    issued: int = 0
    told: list[float] = field(default_factory=list)  # when each step was answered

    @property
    def steps(self) -> int:
        return len(self.told)

    def issue(self) -> None:
        while self.issued - self.steps < self.ahead:
            one = self.inferlet
            one.embed(0)
            one.call("forward", one.queue, [], [one.embeds, 1], [], [one.embeds + 1, 1])
            one.sample(1)
            self.issued += 1


@dataclass(eq=False)
class Prefill(Guest):
    """A program that runs a prompt of so many tokens, once."""

    tokens: int = 0

    def issue(self) -> None:
        if not self.issued:
            one, self.issued = self.inferlet, 1
            one.embed(0, self.tokens)
            one.call("forward", one.queue, [], [one.embeds, self.tokens], [one.pages, one.num_pages], [])
            one.sample(self.tokens - 1)


@dataclass
class Host:
    """What runs on one host. `shared`: one processor for all of its inferlets. `delay`: of each message, each way.
    `pieces`: it sends what an inferlet issues at once, not when all of them wait."""

    shared: bool = False
    delay: float = 0.0
    pieces: bool = False
    free_at: float = 0.0
    awake: int = 0  # inferlets that work
    heard: int = 0
    outbox: list[Any] = field(default_factory=list)


class Pace:
    """A world in which time passes."""

    def __init__(
        self, policy: DispatchPolicy, fixed: float, each: float, hosts: Sequence[Host] = (Host(),), **sizes: int
    ) -> None:
        limits = {"num_pages": 2000, "num_embeds": 20_000, "num_token_slots": 4096, "max_batch_tokens": 4096}
        self.description = describe(**{**limits, **sizes})
        self.scheduler = Scheduler(self.description, policy)
        self.fixed, self.each, self.hosts = fixed, each, [replace(host, outbox=[]) for host in hosts]
        self.guests: list[Guest] = []
        self.now = 0.0
        self.busy = 0.0  # seconds of the worker
        self.waves: list[int] = []  # tokens of each
        self._at_worker: deque[RunWave] = deque()
        self._worker_free = 0.0
        self._deadline: float | None = None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    # ---- inferlets ----

    def add(self, think: float, host: int = 0, ahead: int = 1, standing: Standing = DEFAULT_STANDING) -> Guest:
        """One more inferlet, which issues its first step at once."""
        guest = Guest(self.open(host, standing), think, host, ahead)
        self.guests.append(guest)
        self._wake(guest)
        return guest

    def prefill(self, tokens: int, host: int = 0) -> Guest:
        """One more inferlet, which issues its prompt at once."""
        pages = -(-tokens // self.description.page_size)
        guest = Prefill(self.open(host, DEFAULT_STANDING, pages, tokens), 0.0, host, tokens=tokens)
        self.guests.append(guest)
        self._wake(guest)
        return guest

    def open(self, host: int = 0, standing: Standing = DEFAULT_STANDING, pages: int = 0, embeds: int = 2) -> Inferlet:
        owner = len(self.guests) + 1
        outbox = self.hosts[host].outbox
        inferlet = Inferlet(owner, self.description, Quota(), outbox.append)
        outbox.append(Opened(owner, float(owner), standing, host))
        inferlet.allocate(pages, embeds)
        return inferlet

    # ---- time ----

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self._due, (when, next(self._order), action))

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heappop(self._due)
            action()
        self.now = end

    # ---- control ----

    def _turn(self, *events: Event) -> None:
        turn = self.scheduler.turn(self.now, events)
        for wave in turn.waves:
            self._start(wave)
        spaces = {guest.inferlet.owner: guest for guest in self.guests}
        for progress in turn.progress:
            spaces[progress.owner].inferlet.space.progressed(*progress[1:])
        told: dict[int, list[Guest]] = {}
        for completion in turn.completions:
            guest = spaces[completion.owner]
            guest.inferlet.hear(completion)
            told.setdefault(guest.host, []).append(guest)
        for number, guests in told.items():
            self.at(self.now + self.hosts[number].delay, partial(self._hear, number, guests, turn.number))
        self._deadline = turn.deadline
        if turn.deadline is not None:
            self.at(turn.deadline, partial(self._deadline_passed, turn.deadline))

    def _deadline_passed(self, when: float) -> None:
        if self._deadline == when:
            self._turn()

    # ---- worker ----

    def _start(self, wave: RunWave) -> None:
        tokens = sum(int(batch.q_indptr[-1]) for batch in wave.batches if isinstance(batch, Forward))
        seconds = self.fixed + self.each * tokens
        self._worker_free = max(self._worker_free, self.now) + seconds
        self.busy += seconds
        self.waves.append(tokens)
        self._at_worker.append(wave)
        self.at(self._worker_free, partial(self._answer, seconds))

    def _answer(self, seconds: float) -> None:
        wave = self._at_worker.popleft()
        results = [
            SampleResult(np.full(batch.count(), 65, np.int32)) if isinstance(batch, Sample) else None
            for batch in wave.batches
        ]
        self._turn(WaveDone(wave.wave, tuple(results), seconds))

    # ---- hosts ----

    def _hear(self, number: int, guests: list[Guest], turn: int) -> None:
        self.hosts[number].heard = turn
        for guest in guests:
            guest.told.append(self.now)
            self._wake(guest)

    def _wake(self, guest: Guest) -> None:
        host = self.hosts[guest.host]
        host.awake += 1
        begins = max(host.free_at, self.now) if host.shared else self.now
        host.free_at = begins + guest.think
        self.at(host.free_at, partial(self._back, guest))

    def _back(self, guest: Guest) -> None:
        host = self.hosts[guest.host]
        host.awake -= 1
        guest.issue()
        if host.pieces or not host.shared or not host.awake:
            self.at(self.now, partial(self._flush, guest.host))  # behind others that are back at the same time

    def _flush(self, number: int) -> None:
        host = self.hosts[number]
        if host.outbox:
            events = [*host.outbox, *([] if host.awake else [HostQuiet(number, host.heard)])]
            host.outbox.clear()
            self.at(self.now + host.delay, partial(self._turn, *events))
