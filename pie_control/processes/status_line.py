"""One line on stderr that is rewritten: how far something has come. Where that is no terminal, a line now and then."""

from __future__ import annotations

import logging
import sys
import time

INTERVAL_SECONDS = 10.0
CLEAR = "\r\x1b[K"  # back to the first column, erase to the end of the line


class StatusLine:
    """What a process tells of its progress, passed on to whoever reads our stderr."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._shown = False
        self._next = 0.0

    def show(self, text: str) -> None:
        """Replaces what was shown before. Of other processes: it may hold what a terminal must not obey."""
        if sys.stderr.isatty():
            self._shown = True
            shown = "".join(each if each.isprintable() else "?" for each in text)
            print(f"{CLEAR}{shown}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL_SECONDS
            self._log.warning("%s", text)

    def clear(self) -> None:
        """Makes room for ordinary lines."""
        if self._shown:
            self._shown = False
            print(CLEAR, end="", file=sys.stderr, flush=True)
