"""Runs a command's coroutine so that Ctrl-C and SIGTERM end it, and all that it opened, soon."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_signal(command: Coroutine[Any, Any, int]) -> int:
    """The command's exit code. On a signal it is cancelled, its `finally` clauses run, and the process ends with 128
    plus the signal's number."""
    return asyncio.run(_guard(command))


async def _guard(command: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(command)
    received: list[int] = []
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, _interrupt, task, number, received)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        _leave(128 + received[0])
        raise AssertionError("unreachable") from None


def _interrupt(task: asyncio.Future[int], number: int, received: list[int]) -> None:
    if received:  # the second signal: not even the cleaning up is waited for
        os._exit(128 + number)
    received.append(number)
    task.cancel()


def _leave(code: int) -> None:
    """Ends the process now: a thread that compiles a component cannot be cancelled, and would be waited for."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
