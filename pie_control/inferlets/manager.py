"""The inferlet lifecycle manager of a host (paper, section 5.1): launches and ends inferlets, enforces limits."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..config import InferletLimits
from ..programs.host.programs import HostPrograms
from ..programs.host.python_guests import ProgramOwner
from ..sandbox.fibers import Instance, Step
from ..services.aside import Aside
from ..texts import cut
from .events import InferletUsage, InferletWait, Launch
from .inferlet import Inferlet, ModelHoldings
from .lifecycle import Status, check_transition
from .relations.children import Child, Outside
from .runner import Runner

log = logging.getLogger(__name__)

LEAST_TO_END = 1 << 20
"""Bytes by which an inferlet must have grown, if it is to end for lack of memory: it would free next to nothing."""
SWEEP_SECONDS = 1.0
UPKEEP_SECONDS = 0.02
"""Between slices of work that can wait, while inferlets run."""
IDLE_UPKEEP_SECONDS = 0.005
"""Between them if none has run since the last slice, and launches would have to do without: one that comes waits for
two milliseconds at most."""
EMPTY_UPKEEP_SECONDS = 0.001
"""Between them if there is no inferlet: after a burst of launches hundreds are to be freed and made again."""
MOST_POSTPONED = 10
"""Slices that are postponed, one after the other, because inferlets want turns."""
MOST_UNFREED, FREED_AT_ONCE = 1024, 3
"""Instances of inferlets that have ended and wait to be freed, and how many of them one slice frees. A burst of as many
launches frees none: its last ones would wait for that."""
UNFREED_UNTIL = 1 / 2
"""Share of the memory for guests up to which they wait."""
LARGE_BYTES = 4 << 20
"""An instance that holds as much is freed at once."""
WARM_UNTIL = 3 / 4
"""Share of the memory for guests up to which some are made ahead."""
ABORTED = "`unreachable`"
"""What the message of a trap says if a guest has ended itself."""
TOO_LARGE = "exceeds memory limits"
"""What wasmtime says of a guest that begins with more memory than it may have."""
PAUSED = "more of its budget of processor time"
"""What those wait for that could run, and are paused."""
MOST_TOLD = 4096
"""Bytes of the reason that it has logged."""
MOST_DROPPED = 8
"""Guests that wait for a launch and are freed at once, when memory is short: that takes a millisecond each."""


class InstanceOwner(ProgramOwner, ModelHoldings, Protocol):
    """The owner of an inferlet's instance and of its holdings."""


class InferletManager:
    """The inferlets of a host, and their runner. `make_guest` gives an inferlet what its host functions need; the
    manager calls `wake` when an inferlet can run."""

    def __init__(
        self,
        programs: HostPrograms,
        limits: InferletLimits,
        max_guest_bytes: int,
        make_guest: Callable[[Inferlet], InstanceOwner],
        wake: Callable[[], None],
        outside: Outside,
    ) -> None:
        self._programs = programs
        self._limits = limits
        self._max_guest_bytes = max_guest_bytes or sys.maxsize  # 0: not known
        self._make_guest = make_guest
        self._outside = outside
        self.runner = Runner(wake, self._after_step, self.fail)
        self._aside = Aside()
        self._bytes_before = 0  # what the process holds without guests
        self._running: dict[int, Inferlet] = {}  # by number
        self._had_turns: set[Inferlet] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._unfreed: deque[Instance] = deque()
        self._upkeep: asyncio.TimerHandle | None = None
        self._postponed = 0  # slices of upkeep, in a row
        self._turns_before = 0  # counted by the runner at the last slice

    def start(self) -> None:
        """Starts the sweep for idle inferlets and fills the warm pool."""
        self.runner.memory.settle()
        self._bytes_before = self.runner.memory.resident
        self._keep_up()
        self._sweep()  # which asks for upkeep, too: there is one timer of it

    # ---- launching ----

    def launch(self, launched: Launch, parent: Inferlet | None, child: Child | None) -> None:
        """Starts an inferlet of a program that can be launched here. `child`: as which its parent has asked for it, if
        it has one."""
        inferlet = Inferlet(launched, parent, child, self._limits, self.runner.ready, self._outside, self._aside)
        self._running[inferlet.number] = inferlet
        inferlet.kin.begins()
        if child is not None:
            child.begins(inferlet.mail)
        if inferlet.blobs.bytes >= LEAST_TO_END:
            self.runner.memory.settle()
            if self.guest_bytes > self._max_guest_bytes:
                self._drop(inferlet, Status.EXCEEDED, f"{self._memory_use()}: try again when some have ended")
                return
        guest = self._make_guest(inferlet)
        try:
            tenant = launched.standing.tenant.name
            inferlet.instance = self._programs.instance(launched.program, launched.name, guest, tenant)
        except Exception as error:  # whatever it is, the others go on
            log.warning("inferlet %s could not be started", inferlet.id, exc_info=error)
            self._drop(inferlet, Status.FAILED, f"the inferlet could not be started: {error}")
            return
        inferlet.holdings = guest
        self.runner.ready(inferlet)
        self._keep_up_later(UPKEEP_SECONDS)

    # ---- what can wait: freeing instances, and making others ahead ----

    def _keep_up_later(self, seconds: float) -> None:
        if self._upkeep is None:
            self._upkeep = asyncio.get_running_loop().call_later(seconds, self._keep_up)

    def _keep_up(self) -> None:
        """One slice, unless inferlets want turns: of many that are launched at once, the last would wait for it as
        often as the first."""
        self._upkeep = None
        if self.runner.has_ready and self._postponed < MOST_POSTPONED:
            self._postponed += 1
            self._keep_up_later(UPKEEP_SECONDS)
            return
        self._postponed = 0
        hurries = self.runner.turns == self._turns_before and not self._programs.is_warm
        self._turns_before = self.runner.turns
        if self._unfreed:
            self._free(FREED_AT_ONCE)
        elif not self._programs.warm_one(self.guest_bytes < self._max_guest_bytes * WARM_UNTIL):
            return
        if not self._running:
            self._keep_up_later(EMPTY_UPKEEP_SECONDS)
        else:
            self._keep_up_later(IDLE_UPKEEP_SECONDS if hurries else UPKEEP_SECONDS)

    def _free_later(self, instance: Instance) -> None:
        """Frees an instance that is done, at leisure: that takes as long as half a launch."""
        self._unfreed.append(instance)
        if len(self._unfreed) > MOST_UNFREED or self.guest_bytes > self._max_guest_bytes * UNFREED_UNTIL:
            self._free(1)
        self._keep_up_later(UPKEEP_SECONDS)

    def _free(self, most: int) -> None:
        for _ in range(min(most, len(self._unfreed))):
            self._unfreed.popleft().close()
        self.runner.memory.settle()  # what was freed is nobody's growth

    # ---- ending ----

    def _after_step(self, inferlet: Inferlet, step: Step) -> None:
        """Ends an inferlet that finished in its last turn, or that has used too much processor time."""
        self._had_turns.add(inferlet)
        if inferlet.life.has_returned:
            self.end(inferlet, Status.FINISHED, None)
        elif step is Step.DONE:
            error = inferlet.instance.outcome()
            self.end(inferlet, _status_of(inferlet, error), _with_reason(inferlet, error))
        elif inferlet.processor_time.is_exceeded:
            whose = "" if inferlet.parent is None else ", with its family"
            most = inferlet.limits.cpu_seconds
            used = f"used more than {most:g} s of processor time{whose}"
            self.end(inferlet, Status.EXCEEDED, f"{used}: does a loop have no end? (--cpu-seconds)")
        elif inferlet.kin.is_family and (over := inferlet.kin.over_its_memory()) is not None:
            held, most = over.family_bytes() >> 20, over.limits.memory_bytes >> 20
            told = f"i{over.number} and its children hold {held} MiB of {most} MiB"
            self.end(inferlet, Status.EXCEEDED, f"{told}, with messages between them that wait")
        elif self.guest_bytes > self._max_guest_bytes:
            self._make_room(inferlet)

    # ---- memory ----

    @property
    def guest_bytes(self) -> int:
        """Memory of all guests, at the last reading."""
        return self.runner.memory.resident - self._bytes_before

    def _memory_use(self) -> str:
        return f"all inferlets together hold {self.guest_bytes >> 20} MiB of {self._max_guest_bytes >> 20} MiB"

    def _make_room(self, inferlet: Inferlet) -> None:
        """Ends the inferlet that just ran if it has more than an equal share of the memory, else the largest one;
        nobody if it is enough to free those that have ended, or some that wait for a launch."""
        if self._unfreed:
            self._free(len(self._unfreed))
        for _ in range(MOST_DROPPED):
            if self.guest_bytes <= self._max_guest_bytes or not self._programs.drop_one():
                break
            self.runner.memory.settle()
        if self.guest_bytes <= self._max_guest_bytes:
            return
        if _held(inferlet) < self._max_guest_bytes / len(self._running):
            inferlet = max(self._running.values(), key=_held)
        if _held(inferlet) >= LEAST_TO_END:
            held = f"{_held(inferlet) >> 20} MiB of it by this one"
            self.end(inferlet, Status.EXCEEDED, f"{self._memory_use()}, {held}: use less, or try again later")

    def end(self, inferlet: Inferlet, status: Status, error: str | None) -> None:
        """Ends an inferlet that has no turn now, frees everything that it held, and says so. Idempotent."""
        if inferlet.number not in self._running:
            return
        check_transition(inferlet.status, status)
        self.runner.forget(inferlet)
        self.runner.memory.settle()
        self._drop(inferlet, status, error, partial(self._let_go, inferlet, status))

    def fail(self, inferlet: Inferlet, error: Exception) -> None:
        """An inferlet ends by a defect of the server, and no other one does."""
        log.error("inferlet %s cannot go on", inferlet.id, exc_info=error)
        self.end(inferlet, Status.FAILED, f"{error!r}: this is a defect of the server")

    def _let_go(self, inferlet: Inferlet, status: Status) -> None:
        if not self._keeps(inferlet, status):
            if status is Status.FINISHED and inferlet.kin.memory_bytes < LARGE_BYTES:
                self._free_later(inferlet.instance)
            else:
                inferlet.instance.close()

    def _keeps(self, inferlet: Inferlet, status: Status) -> bool:
        """Whether the instance is kept for the next launch of the program."""
        if status is not Status.FINISHED or not inferlet.life.has_returned:
            return False
        tenant, program = inferlet.launched.standing.tenant.name, inferlet.launched.program
        return self._programs.keep(inferlet.instance, program, tenant, inferlet.kin.memory_bytes)

    def _drop(
        self, inferlet: Inferlet, status: Status, error: str | None, let_go: Callable[[], None] = lambda: None
    ) -> None:
        """Its client waits for the end, so each part of it comes, whatever becomes of those before. `let_go`: of its
        instance."""
        finish = partial(inferlet.finish, status, error)
        why = f"its parent {inferlet.id} has ended ({status})"
        for part in (let_go, partial(self._end_children, inferlet, why), partial(self._forget, inferlet), finish):
            try:
                part()
            except Exception:
                log.exception("a part of the end of inferlet %s failed", inferlet.id)
        self.runner.memory.settle()  # what was freed is nobody's growth

    def _end_children(self, inferlet: Inferlet, why: str) -> None:
        for child in tuple(inferlet.kin.children):
            self.end(self._running[child], Status.TERMINATED, why)

    def _forget(self, inferlet: Inferlet) -> None:
        del self._running[inferlet.number]
        inferlet.kin.ended()
        self._had_turns.discard(inferlet)
        inferlet.holdings.release()

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        oldest = time.monotonic() - self._limits.idle_seconds
        old = [one for one in self._running.values() if one.life.last_turn < oldest and not one.kin.children]
        idle = [one for one in old if not (self.runner.can_run(one) or one.holdings.is_at_work)]
        for inferlet in idle:
            self.end(inferlet, Status.EXCEEDED, f"was idle for more than {self._limits.idle_seconds:g} s")
        self._keep_up_later(UPKEEP_SECONDS)  # with time, fewer guests wait, and there may be memory for more

    # ---- look-ups ----

    def try_running(self, number: int) -> Inferlet | None:
        """The inferlet with this number if it runs, else None."""
        return self._running.get(number)

    def waits(self, number: int, stack: bool) -> list[InferletWait]:
        """What an inferlet waits for, or each (0). `stack`: and lets it say where it stands."""
        asked = [self._running[number]] if number in self._running else [] if number else list(self._running.values())
        now = time.monotonic()
        waits = [InferletWait(one.number, self._waits_for(one), now - one.life.last_turn) for one in asked]
        for one in asked if stack else ():
            one.waits.ask()
        return waits

    def _waits_for(self, inferlet: Inferlet) -> str:
        return PAUSED if self.runner.is_held(inferlet) else inferlet.waits.what()

    def take_usage(self) -> list[InferletUsage]:
        """The usage of those that had a turn since it was asked last."""
        usage = [InferletUsage(one.number, one.processor_time.used, *one.holdings.usage()) for one in self._had_turns]
        self._had_turns.clear()
        return usage

    def close(self) -> None:
        """Ends all inferlets and stops the timers. Idempotent."""
        for inferlet in list(self._running.values()):
            self.end(inferlet, Status.TERMINATED, "the server stops")
        self._free(len(self._unfreed))
        for timer in (self._sweeper, self._upkeep):
            if timer is not None:
                timer.cancel()
        self._aside.close()
        self.runner.memory.close()


def _held(inferlet: Inferlet) -> int:
    """Bytes that it holds in this process: the growth of its guest, blobs, and what waits for it."""
    waiting = inferlet.waits.futures.bytes + inferlet.mail.unread_bytes
    return inferlet.kin.memory_bytes + inferlet.blobs.bytes + waiting


def _with_reason(inferlet: Inferlet, error: str | None) -> str | None:
    """An error with what a guest that aborts has logged before, as the Rust crate does when a program panics; or else
    with what may have been the reason."""
    most = inferlet.limits.memory_bytes >> 20
    if error is not None and TOO_LARGE in error:
        return f"{error}: the program has a memory of more than {most} MiB, its limit; link it with a smaller one"
    if error is None or ABORTED not in error:
        return error
    if inferlet.last_error:
        return f"{cut(inferlet.last_error, MOST_TOLD)}\n{error}"
    return f"{error}\nthe program has ended itself: by exit or abort, or as it wanted more memory than {most} MiB"


def _status_of(inferlet: Inferlet, error: str | None) -> Status:
    """How an inferlet has ended by itself. One that a missing worker has ended is lost, whether it was there when the
    worker died or came behind it: who launches again what was lost need not tell them apart."""
    if error is None:
        return Status.FINISHED
    return Status.LOST if inferlet.no_worker and inferlet.no_worker.splitlines()[0] in error else Status.FAILED
