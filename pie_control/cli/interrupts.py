"""Runs a command's coroutine; Ctrl-C, SIGTERM and SIGHUP end it quickly and close what it opened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

_parts: list[asyncio.Future[None]] = []
"""What Ctrl-C ends in place of the command, the innermost last."""


def run_until_signal(command: Coroutine[Any, Any, int]) -> int:
    """Returns the command's exit code. A signal cancels the command: its `finally` clauses run, then the process exits
    with 128 plus the signal number."""
    return asyncio.run(_guard(command))


async def _guard(command: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(command)
    received: list[int] = []
    for number in _signals():
        asyncio.get_running_loop().add_signal_handler(number, _interrupt, task, number, received)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        _leave(128 + received[0])
        raise AssertionError("unreachable") from None


def _signals() -> Iterator[signal.Signals]:
    """Those that end a command; a terminal that is closed sends SIGHUP. `nohup` says that this does not end it."""
    yield from (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        yield signal.SIGHUP


async def until_interrupt(part: Coroutine[Any, Any, None]) -> bool:
    """Runs a part of the command, which Ctrl-C ends alone: the command goes on. False: it was ended so."""
    task = asyncio.ensure_future(part)
    _parts.append(task)
    try:
        await task
    except asyncio.CancelledError:
        if (command := asyncio.current_task()) is None or command.cancelling():
            raise
        return False
    finally:
        _parts.remove(task)
    return True


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """For a block without an event loop: SIGTERM raises KeyboardInterrupt in it, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(task: asyncio.Future[int], number: int, received: list[int]) -> None:
    if number == signal.SIGINT and _parts:
        _parts[-1].cancel()
        return
    if received and number == signal.SIGHUP:
        return  # a shell sends it again, after its terminal
    if received:  # the second signal: exit without waiting for the clean-up
        os._exit(128 + number)
    received.append(number)
    task.cancel(number)


def _leave(code: int) -> None:
    """Exits at once. A normal exit would wait for a thread that compiles a component, which cannot be cancelled."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
