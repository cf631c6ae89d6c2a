"""Shows on stderr how far loading has come: nothing if it is quick, else one line that is rewritten.

The line ends with a carriage return, so a terminal overwrites it; a control process that reads it decides how to show
it.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import TextIO

from ..amounts import amount

PATIENCE_SECONDS = 1.0
INTERVAL_SECONDS = 0.25
LINE_SECONDS = 10.0
"""Between two lines about the progress, where stderr is no terminal."""


class LoadProgress:
    """Bytes of weights loaded so far, of `total`."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._done = 0
        self._started = time.monotonic()
        self._next = self._started + PATIENCE_SECONDS
        self._shown = False

    def advance(self, nbytes: int) -> None:
        """Counts `nbytes` more bytes as loaded. What is read twice, as tied embeddings, is no more than `total`."""
        self._done = min(self._done + nbytes, self._total)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL_SECONDS
            self._shown = True
            share = self._done / max(self._total, 1)
            of = f"{amount(self._done, 'B')} of {amount(self._total, 'B')}"
            self._write(f"loading weights: {share:4.0%}, {of}, {amount(self._rate(now), 'B/s')}\r")

    def finish(self) -> None:
        """Ends the line, if there is one."""
        if self._shown:
            now = time.monotonic()
            seconds = now - self._started
            done = f"{amount(self._done, 'B')} in {seconds:.1f} s, {amount(self._rate(now), 'B/s')}"
            self._write(f"loaded weights: {done}\n")

    def _rate(self, now: float) -> float:
        return self._done / max(now - self._started, 1e-9)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class ProgressLines(io.TextIOBase):
    """Stands in for stderr. Lines that end with a carriage return tell how far something has come: `tell` hears them,
    and where `stream` is no terminal it has only some of them, as lines."""

    def __init__(self, stream: TextIO, tell: Callable[[str], None]) -> None:
        self._stream = stream
        self._tell = tell
        self._next = 0.0

    def write(self, text: str) -> int:
        if not text.endswith("\r"):
            return self._stream.write(text)
        self._tell(text.strip())
        if self._stream.isatty():
            self._stream.write(text)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            self._stream.write(f"worker: {text.strip()}\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()
