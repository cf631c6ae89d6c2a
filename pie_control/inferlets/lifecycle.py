"""The life of an inferlet as a table (paper, section 5.1)."""

from __future__ import annotations

import time
from enum import StrEnum


class Status(StrEnum):
    """Where an inferlet is in its life."""

    CREATED = "created"  # has an instance, has not run yet
    RUNNING = "running"
    FINISHED = "finished"  # `run` returned
    FAILED = "failed"  # an exception, an error returned, a trap
    TERMINATED = "terminated"  # by its client or the operator
    EVICTED = "evicted"  # others needed its pages
    EXCEEDED = "exceeded"  # went beyond its CPU or idle limit
    LOST = "lost"  # its worker or its host died


ENDINGS = frozenset(Status) - {Status.CREATED, Status.RUNNING}

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.CREATED: frozenset({Status.RUNNING, Status.FAILED, Status.TERMINATED, Status.EXCEEDED, Status.LOST}),
    Status.RUNNING: ENDINGS,
    **{ending: frozenset() for ending in ENDINGS},
}


class IllegalTransition(Exception):
    """An inferlet cannot go from one status to another; nothing has changed."""


def check_transition(before: Status, after: Status) -> None:
    """Raises IllegalTransition unless the table allows the step."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"an inferlet that is {before} cannot become {after}")


class InferletLife:
    """Where one inferlet is in its life, and since when."""

    __slots__ = ("_result", "has_returned", "last_turn", "started", "status")

    def __init__(self, age: float) -> None:
        """`age`: seconds since its launch was asked for."""
        self.status = Status.CREATED
        self.started = time.monotonic() - age
        self.last_turn = time.monotonic()
        self.has_returned = False  # its program, whose instance waits for another launch of it
        self._result: str | None = None

    def change(self, status: Status) -> None:
        """Raises IllegalTransition."""
        check_transition(self.status, status)
        self.status = status

    def turn_ended(self, now: float) -> None:
        """`now`: of the monotonic clock, in seconds."""
        self.last_turn = now

    def put_result(self, text: str) -> None:
        self._result = text

    @property
    def result_of_end(self) -> str | None:
        """What an inferlet leaves that has finished; one that ends otherwise leaves nothing."""
        return self._result if self.status is Status.FINISHED else None
