"""Keeps tests of the fast tier to what the tier promises: whoever starts a process or a server fails."""

from __future__ import annotations

import functools
import multiprocessing.process
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FORBIDDEN = {
    "subprocess.Popen": "starts a process",
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "socket.bind": "starts a server",
}
"""Audit events of Python."""
TOO_LARGE = ("peft", "transformers", "triton", "wasmtime")

_seen: list[str] | None = None
"""What tests have done that they may not; None: all is allowed."""


class NotFast(AssertionError):
    """A test of the fast tier does what takes long."""


def _forbid(what: str) -> None:
    if _seen is not None:
        _seen.append(what)
        raise NotFast(
            f"this test {what}, and nothing that it uses says so: add that to HEAVY in tests/helpers/tiers.py"
        )


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event in FORBIDDEN:
        _forbid(f"{FORBIDDEN[event]} ({event})")
    elif event == "import" and arguments[0].partition(".")[0] in TOO_LARGE:
        _forbid(f"imports {arguments[0]}")


@functools.cache
def install() -> None:
    """For ever: audit hooks stay. multiprocessing raises no event for the processes that it spawns."""
    sys.addaudithook(_hear)
    start = multiprocessing.process.BaseProcess.start

    def guarded(process: multiprocessing.process.BaseProcess) -> None:
        _forbid("starts a process (multiprocessing)")
        start(process)

    multiprocessing.process.BaseProcess.start = guarded  # type: ignore[method-assign, assignment]


@contextmanager
def guarded() -> Iterator[None]:
    """What happens inside may start nothing; if it hides that it tried, this fails at the end."""
    global _seen
    install()
    seen: list[str] = []
    _seen = seen
    try:
        yield
    finally:
        _seen = None
    if seen:
        raise NotFast(f"this test {seen[0]}")
