"""Processes that tests look for. One that has ended is none, even while nobody has asked for its status."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from tests.helpers.guard import HANG_SECONDS


def below(parent: int | None = None) -> dict[psutil.Process, list[str]]:
    """What runs of what a process, or this one, has started, with the words of its command."""
    found: dict[psutil.Process, list[str]] = {}
    for one in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            found[one] = one.cmdline()
    return found


def running(word: str, parent: int | None = None) -> list[psutil.Process]:
    """Those below a process, or this one, whose command has a word."""
    return [one for one, words in below(parent).items() if word in " ".join(words)]


def compilers() -> list[psutil.Process]:
    """Those that compile components."""
    return running("compile_child")


def runs(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def until_gone(*pids: int) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f"processes {left} live on"
        time.sleep(0.01)
