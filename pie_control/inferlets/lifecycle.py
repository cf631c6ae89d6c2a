"""The life of an inferlet as a table (paper, section 5.1)."""

from __future__ import annotations

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
