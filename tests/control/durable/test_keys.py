"""Keys as a server reads them from its state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pie_control.durable.database import open_database
from pie_control.durable.keys import Keys, add_key, revoke_key
from pie_control.errors import StateUnavailable


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
