"""Work for an inferlet on another thread, while its guest goes on."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from ...errors import CallError, QuotaExceeded, WorkerError
from ...services.aside import Job
from .waits import RunAside, Waits

logger = logging.getLogger(__name__)

Answer = Callable[[Any], None]

MOST_WAITING = 64
"""Calls of one inferlet that wait at a time, and requests whose answer waits to be unpacked."""


class Background:
    """The work for one inferlet, which is done piece after piece and charged to it."""

    __slots__ = ("_charge", "_job", "_run_aside", "_waiting", "_waits")

    def __init__(self, waits: Waits, run_aside: RunAside, charge: Callable[[float], None]) -> None:
        self._waits = waits
        self._run_aside = run_aside
        self._charge = charge
        self._waiting: deque[tuple[Answer, Callable[[], Any]]] = deque()  # with work; the first one is under way
        self._job: Job | None = None

    def resolve(self, future: int, work: Callable[[], Any]) -> None:
        """Gives a future what `work` returns, or the CallError that it raises. As with `Waits.run_aside`, but the guest
        goes on, so `work` must not use what is the guest's. Raises QuotaExceeded if very many wait."""
        self._add(functools.partial(self._waits.resolve, future), work)

    async def do(self, work: Callable[[], Any]) -> Any:
        """What `work` returns; raises the CallError that it raises, and QuotaExceeded if very much waits. It is done,
        and charged, even if nobody waits for it any more."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(lambda value: None if done.done() else done.set_result(value), work)
        value = await done
        if isinstance(value, CallError):
            raise value
        return value

    def _add(self, answer: Answer, work: Callable[[], Any]) -> None:
        if len(self._waiting) >= MOST_WAITING:
            raise QuotaExceeded(f"{MOST_WAITING} calls that take long are under way: wait for some first")
        self._waiting.append((answer, work))
        if len(self._waiting) == 1:
            self._begin(work)

    def _begin(self, work: Callable[[], Any]) -> None:
        self._job = self._run_aside(work, self._done)

    def _done(self) -> None:
        answer, _ = self._waiting.popleft()
        job, self._job = self._job, None
        assert job is not None
        self._charge(job.seconds)
        answer(_value(job))
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
