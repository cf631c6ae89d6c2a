"""Tells the user why the start takes long."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

from .terminal import write_line

SECONDS = 4.0
NOTICE = (
    "pie: still starting: a first start compiles the sandbox and kernels, which takes up to a minute; a large model "
    "takes its time, too"
)


@contextlib.contextmanager
def explaining_slow_start() -> Iterator[None]:
    """Prints a notice if the block takes longer than a start with everything cached."""
    timer = asyncio.get_running_loop().call_later(SECONDS, lambda: write_line(NOTICE, sys.stderr))
    try:
        yield
    finally:
        timer.cancel()
