"""Keys as a server reads them from its state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pie_control.durable.database import open_database
from pie_control.durable.keys import Keys, add_key, revoke_key
from pie_control.errors import ConfigError, StateUnavailable


class Failing:
    """Reads the keys, except where it is told to fail."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.fails = False
        self._database = database

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Iterable[Any]:
        if self.fails and "FROM keys" in statement:
            raise StateUnavailable("the disk is away")
        return self._database.execute(statement, values)


def test_a_revocation_is_not_lost_when_reading_it_fails(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    key = add_key(database, "default", "ci", b"digest", "abcd", ("launch",), None)
    reader = Failing(database)
    keys = Keys(reader)
    keys.look()
    revoke_key(database, "ci")
    reader.fails = True
    assert not keys.look()
    reader.fails = False
    assert keys.look()
    assert not keys.valid(key.created)
    database.close()


def test_a_name_has_one_valid_key(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    first = add_key(database, "default", "ci", b"first", "abcd", (), None)
    with pytest.raises(ConfigError, match=f"default has a valid key 'ci': give another name, .* revoke {first.id}"):
        add_key(database, "alice", "ci", b"second", "abcd", (), None)
    revoke_key(database, "ci")
    expired = add_key(database, "default", "ci", b"third", "abcd", (), 1.0)
    assert not expired.is_valid(2.0)
    last = add_key(database, "default", "ci", b"fourth", "abcd", (), None)
    assert revoke_key(database, "ci").id == last.id
    database.close()


def test_a_name_that_another_process_gives_meanwhile_has_one_valid_key(tmp_path: Path) -> None:
    database, other = open_database(tmp_path), open_database(tmp_path)

    def begins(statement: str) -> None:
        if statement.startswith("BEGIN"):
            database.set_trace_callback(None)
            add_key(other, "default", "ci", b"first", "abcd", (), None)

    database.set_trace_callback(begins)
    with pytest.raises(ConfigError, match="default has a valid key 'ci'"):
        add_key(database, "default", "ci", b"second", "abcd", (), None)
    assert revoke_key(other, "ci").ending == "abcd"  # the first transaction has ended
    database.close()
    other.close()
