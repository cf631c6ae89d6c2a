"""Who keeps which program, and by which names."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any

from ..commits import Reading
from ..writer import Writer

WAIT_SECONDS = 2.0
"""The longest that a change waits for a disk that has no room."""


class ProgramRecords:
    """By owner and hash: a JSON object for each program. Belongs to one thread."""

    def __init__(self, writer: Writer, reader: Reading) -> None:
        self._writer = writer
        self._known: dict[str, dict[str, str]] = {}
        for owner, program, kept in reader.execute("SELECT owner, program, kept FROM programs ORDER BY rowid"):
            self._known.setdefault(owner, {})[program] = kept

    def read(self) -> dict[str, dict[str, Any]]:
        """All of them."""
        return {owner: {one: json.loads(kept) for one, kept in own.items()} for owner, own in self._known.items()}

    def write(self, owner: str, programs: Mapping[str, Any]) -> None:
        """What an owner keeps from now on. Raises OSError if the disk does not take it."""
        known, told = self._known.get(owner, {}), {one: json.dumps(kept) for one, kept in programs.items()}
        gone = [("DELETE FROM programs WHERE owner = ? AND program = ?", (owner, one)) for one in known.keys() - told]
        new = [
            ("INSERT OR REPLACE INTO programs (owner, program, kept) VALUES (?, ?, ?)", (owner, one, kept))
            for one, kept in told.items()
            if known.get(one) != kept
        ]
        if not self._writer.put(*gone, *new):
            self._writer.wait(WAIT_SECONDS)
            if self._writer.trouble:
                raise OSError(errno.ENOSPC, self._writer.trouble)
        self._known[owner] = told
