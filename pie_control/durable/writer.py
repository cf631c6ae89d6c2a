"""The one thread of a server that commits into its state, in groups. What is put is in a journal at once, so nobody has
to wait for a commit."""

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
from typing import Any

from ..errors import ConfigError, StateUnavailable
from .commits import Backlog, Put, Write, catch_up, commit
from .database import FILE, open_database
from .journal import Journal

log = logging.getLogger(__name__)

MOMENT_SECONDS = 0.25
"""What is put waits as long for others to be committed with it."""
LOOK_SECONDS = 1.0
"""Between two looks whether the file is there."""
RETRY_SECONDS = 5.0
"""Between two tries to write what could not be written."""
TOLD_SECONDS = 60.0
"""So long it is told that something could not be read."""


class Writer:
    """Commits in groups. While the file cannot be written (a full disk), the server goes on: what is put is kept in
    memory or in the journal, the newest of it (`Backlog`), and tried again; `trouble` says so."""

    def __init__(
        self,
        database: sqlite3.Connection,
        path: Path,
        journal: Journal,
        collect: Callable[[int], list[Write]],
        prepare: Callable[[], None],
    ) -> None:
        """Takes over the connection and the journal, whose records are committed first if a process before had no time
        for that. `collect` is called on the thread before each commit, with the bytes that it has, for what is written
        with it; `prepare` before a file that was removed is written anew: there has to be a folder. Raises
        sqlite3.Error, OSError."""
        self._database = database
        self._path = path
        self._identity = _identity(path)
        self._sqlite_journal = path.with_name(f"{path.name}-wal")
        self._journal = journal
        self._collect = collect
        self._prepare = prepare
        self._changed = threading.Condition()
        self._puts: list[Put] = []
        self._after: list[Callable[[], None]] = []  # called on the thread
        self._stirred = self._urgent = self._closing = self._closed = False
        self._next_try = 0.0  # on the monotonic clock
        self.trouble = ""
        """Why nothing can be written now; empty: it can."""
        self.files = 1
        """One more each time that the file was written anew: other connections are to one that is gone."""
        self._number = catch_up(database, journal.records())  # of the last record
        journal.committed(all_of_it=True)
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    def put(self, *writes: Write, then: Callable[[], None] | None = None) -> bool:
        """Writes all or none; whether they survive this process already. Without `then` they do unless the journal is
        full, and are committed within a moment. With it they are not in the journal, which is better for what is
        large, but committed as soon as can be; `then` is called on the loop of the caller when that is done, or could
        not be done. Behind `close` nothing is written."""
        with self._changed:
            if self._closed:
                if then is not None:
                    _on_loop(asyncio.get_running_loop(), then)()
                return False
            if then is not None:
                self._after.append(_on_loop(asyncio.get_running_loop(), then))
                is_safe = False
            else:
                self._number += 1
                is_safe = self._journal.append(self._number, writes)
            self._puts.append((self._number if is_safe else 0, writes))
            if not is_safe:
                self._urgent = True
                self._changed.notify_all()
            elif not self._stirred:
                self._stirred = True
                self._changed.notify_all()
            return is_safe

    def stir(self) -> None:
        """There is something to collect, which may wait a moment."""
        if not self._stirred:
            with self._changed:
                self._stirred = True
                self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Holds the thread of the caller until all that was put before is committed, or could not be, for at most
        `seconds`."""
        done = threading.Event()
        with self._changed:
            if self._closed:
                return
            self._after.append(done.set)
            self._urgent = True
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
        backlog, closing = Backlog(), False
        while not closing:
            more, after, number, closing = self._wait()
            backlog.add(more)
            if closing or time.monotonic() >= self._next_try:
                self._try_to_commit(backlog, number)
            backlog.bound()
            for then in after:
                then()
        if backlog.count:
            log.error("%d changes of the state are not committed: %s", backlog.count, self.trouble)
        self._database.close()
        self._journal.close()

    def _wait(self) -> tuple[list[Put], list[Callable[[], None]], int, bool]:
        """What there is to do, perhaps nothing, and the number of the last record that has it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._urgent or self._stirred or self._closing, LOOK_SECONDS):
                return [], [], self._number, False
            self._changed.wait_for(lambda: self._urgent or self._closing, MOMENT_SECONDS)
            puts, self._puts = self._puts, []
            after, self._after = self._after, []
            self._stirred = self._urgent = False
            self._closed = self._closing
            return puts, after, self._number, self._closing

    def _try_to_commit(self, backlog: Backlog, number: int) -> None:
        """Commits, up to a record. What has to be tried again stays in the backlog."""
        try:
            backlog.add((0, [one]) for one in self._collect(backlog.bytes))
            found = _identity(self._path)
            if not backlog.count and found == self._identity and not self.trouble:
                return
            if found not in (None, self._identity):
                raise OSError(f"{self._path} was replaced by another file: stop the server before you do that")
            if found and not self._sqlite_journal.exists():
                raise OSError(f"{self._sqlite_journal} was removed: start the server again")
            if last := backlog.left_to_journal:
                catch_up(self._database, (one for one in self._journal.records() if one[0] <= last))
            commit(self._database, backlog.writes, number)  # a file that was removed is there as long as it is open
            backlog.clear()
            if found is None:
                self._write_anew()
        except Exception as error:  # whatever it is: without this thread nothing would be kept, and nobody told so
            self._failed(str(error) or type(error).__name__)
            return
        if self.trouble:
            log.warning("the state is written again")
            self.trouble = ""
        with self._changed:
            self._journal.committed(self._puts, self._closing)

    def _write_anew(self) -> None:
        """Writes a file that was removed, of what this process still has of it, and goes on with that."""
        self._prepare()
        for ending in ("-wal", "-shm"):  # of the file that is gone
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            self._database.execute("VACUUM INTO ?", (str(self._path),))
            made = open_database(self._path.parent)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        self._database.close()
        self._database = made
        self._identity = _identity(self._path)
        with self._changed:
            if _identity(self._journal.path) is None:
                self._journal.begin_anew()
                for number, writes in self._puts:
                    if number:
                        self._journal.append(number, writes)
            self.files += 1
        log.warning("%s was removed, and has been written anew", self._path)

    def _failed(self, reason: str) -> None:
        self._next_try = time.monotonic() + RETRY_SECONDS
        if not self.trouble:
            log.error("the state cannot be written, so what ends now may be forgotten by a restart: %s", reason)
        self.trouble = reason


class Reader:
    """A connection that reads what a writer has committed, also where the file was written anew."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self._folder = folder
        self._writer = writer
        self._files = writer.files
        self._connection = open_database(folder)
        self._lock = threading.Lock()  # one thread waits for the other
        self._reason = ""  # why the last read that failed did
        self._failed_at = -TOLD_SECONDS

    @property
    def trouble(self) -> str:
        """Why something could not be read in the last minute; empty: all could."""
        return self._reason if time.monotonic() - self._failed_at < TOLD_SECONDS else ""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> list[Any]:
        """The rows of a query. Raises StateUnavailable."""
        with self._lock:
            return self._execute(statement, values)

    def _execute(self, statement: str, values: Sequence[Any]) -> list[Any]:
        files = self._writer.files
        if self._files != files:
            with contextlib.suppress(ConfigError):  # the file that is gone has what there was
                made = open_database(self._folder)
                self._connection.close()
                self._connection, self._files = made, files
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if not self.trouble:
                log.error("the state in %s cannot be read: %s", self._folder / FILE, error)
            self._reason, self._failed_at = str(error), time.monotonic()
            raise StateUnavailable(f"what survives the server cannot be read: {error}; tell its operator") from error

    def close(self) -> None:
        self._connection.close()


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
