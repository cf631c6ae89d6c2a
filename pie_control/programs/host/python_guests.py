"""Instances of the Python guest. Some are made ahead: they have rehearsed and wait for their program."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ...sandbox.fibers import Instance, Linked, Owner, Step
from ..program_host import SourceText
from .python_source import MadeAhead


class ProgramOwner(Owner, Protocol):
    """The owner of an instance; `source` is the Python program that it runs."""

    source: SourceText | None


class PythonGuests:
    """Instances with `memory_bytes` each; up to `most_ahead` are made ahead."""

    def __init__(self, guest: Linked, memory_bytes: int, most_ahead: int) -> None:
        self._guest = guest
        self._memory_bytes = memory_bytes
        self._most_ahead = most_ahead
        self._waiting: deque[Instance] = deque()
        self._begun: Instance | None = None

    @property
    def ready(self) -> int:
        """Instances that wait for a program."""
        return len(self._waiting)

    def new(self, owner: Owner) -> Instance:
        """An instance that has not begun; it asks its owner for the program."""
        return owned(Instance(self._guest, self._memory_bytes), owner)

    def take(self, owner: ProgramOwner) -> Instance:
        """An instance for an owner that has a program: one that waits, or a new one."""
        if not self._waiting:
            return self.new(owner)
        instance = owned(self._waiting.popleft(), owner)
        instance.resume(owner.source)
        return instance

    def make_ahead(self) -> bool:
        """Works for one slice of time on an instance that is made ahead; False if enough of them wait."""
        if len(self._waiting) >= self._most_ahead:
            return False
        self._begun = self._begun or self.new(MadeAhead())
        if self._begun.step() is not Step.PREEMPTED:  # this guest is our own code: now it waits for its source
            self._waiting.append(self._begun)
            self._begun = None
        return True

    def close(self) -> None:
        """Frees what waits. Idempotent."""
        for instance in (*self._waiting, *([self._begun] if self._begun else [])):
            instance.close()
        self._waiting.clear()
        self._begun = None


def owned(instance: Instance, owner: Owner) -> Instance:
    """Gives an instance to an owner."""
    instance.owner = owner
    owner.instance = instance
    return instance
