"""The one thread of a server that writes into its state. What is put while it commits goes with the next commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

MOMENT_SECONDS = 0.25
"""What may wait a moment waits as long for others."""
RETRY_SECONDS = 5.0
"""Between two tries to write what could not be written."""
MOST_KEPT = 20_000
"""Writes that are kept in memory meanwhile; the oldest go first."""

Write = tuple[str, Sequence[object]]
"""A statement and its values."""


class Writer:
    """Commits in groups. While the file cannot be written (a full disk), the server goes on: what is put is kept in
    memory, within bounds, and tried again; `trouble` says so."""

    def __init__(self, database: sqlite3.Connection, path: Path, collect: Callable[[], list[Write]]) -> None:
        """Takes over the connection. `collect` is called on the thread before each commit, for what is written with
        it."""
        self._database = database
        self._path = path
        self._identity = _identity(path)
        self._collect = collect
        self._changed = threading.Condition()
        self._writes: list[Write] = []
        self._after: list[Callable[[], None]] = []  # called on the thread
        self._stirred = self._closing = False
        self._next_try = 0.0  # on the monotonic clock
        self.trouble = ""
        """Why nothing can be written now; empty: it can."""
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    def put(self, *writes: Write, then: Callable[[], None] | None = None) -> None:
        """Writes soon, all or none. `then` is called on the loop of the caller when that is done, or could not be
        done."""
        after = [_on_loop(asyncio.get_running_loop(), then)] if then is not None else []
        with self._changed:
            self._writes += writes
            self._after += after
            self._changed.notify_all()

    def stir(self) -> None:
        """There is something to collect, which may wait a moment."""
        if not self._stirred:
            with self._changed:
                self._stirred = True
                self._changed.notify_all()

    async def written(self) -> None:
        """Waits until all that was put before is on its way to the disk, or could not be written."""
        done = asyncio.Event()
        self.put(then=done.set)
        await done.wait()

    def wait(self, seconds: float) -> None:
        """The same, for a caller that must not go on: it holds its thread for at most `seconds`."""
        done = threading.Event()
        with self._changed:
            self._after.append(done.set)
            self._changed.notify_all()
        done.wait(seconds)

    def close(self) -> None:
        """Writes what was put, and closes the file. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # ---- on the thread ----

    def _run(self) -> None:
        writes: list[Write] = []
        closing = False
        while not closing:
            more, after, closing = self._wait(bool(writes))
            writes += more
            if closing or time.monotonic() >= self._next_try:
                writes = self._try_to_commit(writes)
            del writes[:-MOST_KEPT]
            for then in after:
                then()
        if writes:
            log.error("%d changes of the state are lost: %s", len(writes), self.trouble)
        self._database.close()

    def _wait(self, failed: bool) -> tuple[list[Write], list[Callable[[], None]], bool]:
        """What there is to do. `failed`: something has to be tried again."""
        with self._changed:
            while not (self._writes or self._after or self._stirred or self._closing):
                if not self._changed.wait(RETRY_SECONDS if failed else None) and failed:
                    break
            if not (self._writes or self._after or self._closing):
                self._changed.wait(MOMENT_SECONDS)
            writes, self._writes = self._writes, []
            after, self._after = self._after, []
            self._stirred = False
            return writes, after, self._closing

    def _try_to_commit(self, writes: list[Write]) -> list[Write]:
        """Returns what has to be tried again."""
        writes = [*self._collect(), *writes]
        if not writes:
            return writes
        try:
            if _identity(self._path) != self._identity:
                raise OSError(f"{self._path} was removed or replaced: restart the server")
            self._commit(writes)
        except (OSError, sqlite3.OperationalError) as error:
            self._failed(str(error))
            return writes
        except (sqlite3.Error, ValueError) as error:  # something that no table can hold: the others go one by one
            log.error("a change of the state cannot be written: %s", error)
            return [] if len(writes) == 1 else [left for one in writes for left in self._try_to_commit([one])]
        if self.trouble:
            log.warning("the state is written again")
            self.trouble = ""
        return []

    def _commit(self, writes: list[Write]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in writes:
                self._database.execute(statement, values)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _failed(self, reason: str) -> None:
        self._next_try = time.monotonic() + RETRY_SECONDS
        if not self.trouble:
            log.error("the state cannot be written, so what ends now may be forgotten by a restart: %s", reason)
        self.trouble = reason


def _on_loop(loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(then)

    return call


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
