"""Who keeps which program, and by which names."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any

from ..commits import Reading, Write
from ..writer import Writer

WAIT_SECONDS = 2.0
"""The longest that a change waits for a disk that has no room."""


class ProgramRecords:
    """By owner and hash: a JSON object for each program. Belongs to one thread."""

    def __init__(self, writer: Writer, reader: Reading) -> None:
        self._writer = writer
        self._reader = reader

    def read(self) -> dict[str, dict[str, Any]]:
        """All of them."""
        found: dict[str, dict[str, Any]] = {}
        for owner, program, kept in self._reader.execute("SELECT owner, program, kept FROM programs ORDER BY rowid"):
            found.setdefault(owner, {})[program] = json.loads(kept)
        return found

    def write(self, owner: str, changed: Mapping[str, Any]) -> None:
        """How an owner keeps these programs from now on; None: no more. Raises OSError if the disk does not take it."""
        if not self._writer.put(*(_write_of(owner, program, kept) for program, kept in changed.items())):
            self._writer.wait(WAIT_SECONDS)
            if self._writer.trouble:
                raise OSError(errno.ENOSPC, self._writer.trouble)


def _write_of(owner: str, program: str, kept: Any) -> Write:
    if kept is None:
        return "DELETE FROM programs WHERE owner = ? AND program = ?", (owner, program)
    statement = "INSERT OR REPLACE INTO programs (owner, program, kept) VALUES (?, ?, ?)"
    return statement, (owner, program, json.dumps(kept))
