"""Tells the user why the start takes long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

log = logging.getLogger(__name__)

SECONDS = 4.0
NOTICE = (
    "still starting: a first start compiles the sandbox and kernels, which takes up to a minute; a large model "
    "takes its time, too"
)


@contextlib.contextmanager
def explaining_slow_start() -> Iterator[None]:
    """Logs a notice if the block takes longer than a start with everything cached."""
    timer = asyncio.get_running_loop().call_later(SECONDS, lambda: log.warning(NOTICE))
    try:
        yield
    finally:
        timer.cancel()
