"""Work of host functions that takes longer than everybody else may wait: on threads beside the event loop.

Theory of operation. A guest that waits for such work is suspended, so each inferlet has one job at most, and what a job
touches of its inferlet nobody else touches. Jobs wait in the order of start-time fair queueing: an inferlet that has
used the threads a lot waits behind one that has not, however often it asks. Clocks are virtual: `Share.until` is the
virtual time at which an inferlet has had what it asked for, and a job starts no earlier than its share allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pie_inference.control_groups import usable_cores
from pie_inference.grammars.stack import deep_stack

THREADS = max(2, min(8, usable_cores() // 4))
"""Jobs that run at a time. Two at least, so that a long one does not hold up all others."""

LEAST_SECONDS = 0.0001
"""Counted for a job that took less: a thread had to be woken for it."""


class ThreadShare:
    """What one inferlet has had of the threads."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0.0


class Job:
    """Work of one inferlet. When it is `done`: `take` its value, and `seconds` of processor time that it took."""

    __slots__ = ("_error", "_on_done", "_value", "_work", "done", "seconds", "share", "start")

    def __init__(self, share: ThreadShare, work: Callable[[], Any], on_done: Callable[[], None]) -> None:
        self.share = share
        self.start = 0.0  # in virtual time
        self.done = False
        self.seconds = 0.0
        self._work: Callable[[], Any] | None = work
        self._on_done: Callable[[], None] | None = on_done
        self._value: Any = None
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Nobody waits for it any more: it is not begun, and its value is dropped. Idempotent."""
        self._work = self._on_done = None

    def take(self) -> Any:
        """What the work returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def run(self) -> None:
        """On a thread of the pool."""
        work, self._work = self._work, None
        if work is None:
            return
        before = time.thread_time()
        try:
            self._value = work()
        except BaseException as error:  # a thread of the pool outlives it; the guest gets it
            self._error = error
        self.seconds = time.thread_time() - before

    def finish(self) -> None:
        """On the thread of the event loop."""
        self.done = True
        if self._on_done is not None:
            self._on_done()


class Aside:
    """The threads. Its methods belong to the thread of one event loop; work runs on others and must not touch what
    belongs to that thread."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="aside")
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, Job]] = []
        self._count = 0
        self._now = 0.0  # virtual time: where the job stood that was begun last

    def run(self, share: ThreadShare, work: Callable[[], Any], on_done: Callable[[], None]) -> Job:
        """Calls `work` on a thread when it is this share's turn, then `on_done` on the thread of the event loop."""
        job = Job(share, work, on_done)
        with self._lock:
            self._count += 1
            job.start = max(self._now, share.until)
            heapq.heappush(self._waiting, (job.start, self._count, job))
        with deep_stack():
            self._pool.submit(self._run_next, asyncio.get_running_loop())
        return job

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._now, _, job = heapq.heappop(self._waiting)
        job.run()
        with self._lock:
            job.share.until = job.start + max(job.seconds, LEAST_SECONDS)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(job.finish)

    def close(self) -> None:
        """Begins no further job. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
