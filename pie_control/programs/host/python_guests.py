"""Instances of the Python guest. Some are made ahead of a launch, in two stages.

First they *begin*: memory is mapped, tables are filled, Python has started, and a short rehearsal
(`inferlet_sdk.guest.rehearsal`) has copied the pages of memory that every program writes to; they wait where they ask
whether to rehearse. That is most of the work of a launch, done early: to copy a page takes 4 us, and there are 270. At
leisure some of them *rehearse* the generation of text. That copies 400 pages more, which is worth its time and memory
only for launches that come one by one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...sandbox.fibers import Instance, Linked, Owner, Step
from ..program_host import SourceText
from ..warm_pool import Demand, WarmPool
from .python_source import MadeAhead

MOST_REHEARSED = 8


class ProgramOwner(Owner, Protocol):
    """The owner of an instance; `source` is the Python program that it runs, and `has_source` whether it has it."""

    source: SourceText | None
    has_source: bool


class PythonGuests:
    """Instances with `memory_bytes` each; as many are made ahead as the demand of late asks for, within `pool`."""

    def __init__(
        self, guest: Linked, memory_bytes: int, pool: WarmPool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._guest = guest
        self._memory_bytes = memory_bytes
        self._demand = Demand(pool)
        self._clock = clock
        self._begun: deque[Instance] = deque()
        self._rehearsed: deque[Instance] = deque()
        self._at_work: Instance | None = None
        self._rehearses = False  # the one at work, the generation of text
        self._is_new = False  # it has not begun

    @property
    def ready(self) -> int:
        """Instances that wait for a program."""
        return len(self._begun) + len(self._rehearsed)

    @property
    def wanted(self) -> int:
        """How many shall wait."""
        return self._demand.wanted(self._clock())

    @property
    def is_full(self) -> bool:
        """Whether as many wait as shall; what is left is to rehearse."""
        return self.ready >= self.wanted

    def new(self, owner: Owner) -> Instance:
        """An instance that has not begun; it asks its owner for the program."""
        return owned(Instance(self._guest, self._memory_bytes), owner)

    def take(self, owner: ProgramOwner) -> Instance:
        """An instance for an owner that has a program: one that waits, or a new one."""
        self._demand.taken(self._clock())
        waiting = self._rehearsed or self._begun
        if not waiting:
            return self.new(owner)
        return given(waiting.popleft(), owner)

    def make_ahead(self, has_room: bool = True) -> bool:
        """Works for one slice of time on an instance that is made ahead, or frees one that is too many; False if there
        is nothing to do. `has_room`: there is memory for a further one."""
        if self._at_work is None:
            if self.ready > self.wanted:
                return self.drop_one()
            self._take_up(has_room)
        if self._at_work is None:
            return False
        if self._at_work.step() is Step.PREEMPTED:
            return True
        if self._is_new:  # this guest is our own code: now it waits
            self._is_new = False
            self._at_work.resume(None)
            return True
        if self._rehearses:
            self._rehearsed.append(self._at_work)
        else:
            self._begun.append(self._at_work)
            self._demand.made()
        self._at_work = None
        return True

    def _take_up(self, has_room: bool) -> None:
        """Begins an instance, if there are too few, or a rehearsal."""
        self._rehearses = self.is_full
        if self._rehearses:
            self._demand.filled()
        if not has_room:
            return
        if not self._rehearses:
            self._at_work, self._is_new = self.new(MadeAhead()), True
        elif self._begun and len(self._rehearsed) < MOST_REHEARSED:
            self._at_work = self._begun.popleft()
            self._at_work.resume(None)

    def drop_one(self) -> bool:
        """Frees one of those that wait, first those that have not rehearsed; False if there is none."""
        if not self.ready:
            return False
        (self._begun or self._rehearsed).pop().close()
        return True

    def close(self) -> None:
        """Frees what waits. Idempotent."""
        for instance in (*self._begun, *self._rehearsed, *([self._at_work] if self._at_work else [])):
            instance.close()
        self._begun.clear()
        self._rehearsed.clear()
        self._at_work = None


def given(instance: Instance, owner: ProgramOwner) -> Instance:
    """Gives an instance that waits for a program to an owner that has one."""
    owned(instance, owner)
    owner.has_source = True
    instance.resume(owner.source)
    return instance


def owned(instance: Instance, owner: Owner) -> Instance:
    """Gives an instance to an owner."""
    instance.owner = owner
    owner.instance = instance
    return instance
