"""Calls of an inferlet that are answered from another thread while its guest goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from ...errors import CallError, QuotaExceeded, WorkerError
from ...services.aside import Job
from .waits import RunAside, Waits

logger = logging.getLogger(__name__)

MOST_WAITING = 64
"""Calls of one inferlet that wait at a time."""


class Background:
    """The calls of one inferlet, which are answered one after the other."""

    __slots__ = ("_charge", "_job", "_run_aside", "_waiting", "_waits")

    def __init__(self, waits: Waits, run_aside: RunAside, charge: Callable[[float], None]) -> None:
        self._waits = waits
        self._run_aside = run_aside
        self._charge = charge
        self._waiting: deque[tuple[int, Callable[[], Any]]] = deque()  # futures and work; the first one is under way
        self._job: Job | None = None

    def resolve(self, future: int, work: Callable[[], Any]) -> None:
        """Gives a future what `work` returns, or the CallError that it raises. As with `Waits.run_aside`, but the guest
        goes on, so `work` must not use what is the guest's. Raises QuotaExceeded if very many wait."""
        if len(self._waiting) >= MOST_WAITING:
            raise QuotaExceeded(f"{MOST_WAITING} calls that take long are under way: wait for some first")
        self._waiting.append((future, work))
        if len(self._waiting) == 1:
            self._begin(work)

    def _begin(self, work: Callable[[], Any]) -> None:
        self._job = self._run_aside(work, self._done)

    def _done(self) -> None:
        future, _ = self._waiting.popleft()
        job, self._job = self._job, None
        assert job is not None
        self._charge(job.seconds)
        self._waits.resolve(future, _value(job))
        if self._waiting:
            self._begin(self._waiting[0][1])

    def end(self) -> None:
        """Nobody wants the values any more."""
        if self._job is not None:
            self._job.cancel()
            self._job = None
        self._waiting.clear()


def _value(job: Job) -> Any:
    """What a job has come to, or the error that its future gets."""
    try:
        return job.take()
    except CallError as error:
        return error
    except Exception as error:
        logger.exception("work beside the loop failed")
        return WorkerError(f"the server could not do it: {type(error).__name__}")
