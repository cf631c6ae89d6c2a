"""How writes get into the database, and with them the number of the last record of the journal that it has."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

log = logging.getLogger(__name__)

Write = tuple[str, Sequence[object]]
"""A statement and its values."""
OF_VALUES = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
    *(ValueError, OverflowError),
)
"""A value is at fault, which no table can hold. Other errors are of the file: it is full, damaged or gone."""

MOST_KEPT, MOST_KEPT_BYTES = 20_000, 64 << 20
"""Writes that are kept in memory while nothing can be written, and of their texts and bytes."""


class Reading(Protocol):
    """What reads: a connection, or what has one."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Iterable[Any]: ...


Put = tuple[int, Sequence[Write]]
"""Writes that belong together, and the number of the record that the journal has of them; 0: it has none."""


class Backlog:
    """What is not committed, in its order. `left_to_journal`: the number of the last record that is not here any more,
    but in the journal."""

    def __init__(self) -> None:
        self._puts: deque[Put] = deque()
        self.count = self.bytes = self.left_to_journal = 0

    def add(self, puts: Iterable[Put]) -> None:
        """Adds what comes next."""
        for number, writes in puts:
            self._puts.append((number, writes))
            self.count += len(writes)
            self.bytes += size_of(writes)

    @property
    def writes(self) -> list[Write]:
        return [one for _, writes in self._puts for one in writes]

    def bound(self) -> None:
        """Drops the oldest beyond what may be kept."""
        while self.count > MOST_KEPT or self.bytes > MOST_KEPT_BYTES:
            number, writes = self._puts.popleft()
            self.count -= len(writes)
            self.bytes -= size_of(writes)
            self.left_to_journal = max(self.left_to_journal, number)

    def clear(self) -> None:
        """All is committed."""
        self._puts.clear()
        self.count = self.bytes = self.left_to_journal = 0


def size_of(writes: Iterable[Write]) -> int:
    """The texts and bytes that are written."""
    return sum(len(value) for _, values in writes for value in values if isinstance(value, (str, bytes)))


def commit(database: sqlite3.Connection, writes: Sequence[Write], number: int) -> None:
    """Commits all at once; where there is something that no table can hold, the others one by one. `number`: of the
    last record of the journal that is among them or before. Raises sqlite3.Error if the file takes none."""
    last: Write = ("INSERT OR REPLACE INTO counters VALUES ('journal', ?)", (number,))
    try:
        _commit(database, [*writes, last])
    except OF_VALUES:
        for one in (*writes, last):
            try:
                _commit(database, [one])
            except OF_VALUES as error:
                log.error("a change of the state cannot be written: %s", error)


def _commit(database: sqlite3.Connection, writes: Sequence[Write]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        for statement, values in writes:
            database.execute(statement, values)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def catch_up(database: sqlite3.Connection, records: Iterable[tuple[int, list[Write]]]) -> int:
    """Commits what a journal has and the database not; returns the number of the last record. What another version of
    Pie has written for other tables is left out, and the log says so. Raises sqlite3.Error."""
    found = database.execute("SELECT value FROM counters WHERE name = 'journal'").fetchone()
    done: int = found[0] if found else 0
    left = [(number, writes) for number, writes in records if number > done]
    if left:
        done = left[-1][0]
        try:
            commit(database, [one for _, writes in left for one in writes], done)
        except sqlite3.OperationalError as error:
            _check_is_of_statement(error)
            for number, writes in left:
                _commit_if_known(database, writes, number)
    return done


def _commit_if_known(database: sqlite3.Connection, writes: Sequence[Write], number: int) -> None:
    try:
        commit(database, writes, number)
    except sqlite3.OperationalError as error:
        _check_is_of_statement(error)
        log.error("a record of the journal is left out, which another version of Pie has written: %s", error)


def _check_is_of_statement(error: sqlite3.OperationalError) -> None:
    """Raises the error again unless it says that there is no such table or column."""
    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
        raise error
