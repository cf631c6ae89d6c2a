"""How a child process begins and ends. Its life is tied to that of its parent, whose word or death ends it, and
nothing else that a terminal or an operator sends to all processes of a server."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2]
"""The folder that has this package and its neighbours."""
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5


TO_ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
"""What is sent to whole groups: Ctrl-C by a terminal, SIGTERM by `timeout` and systemd, SIGHUP to read files again."""


def command_of(module: str) -> list[str]:
    """The command that runs a module in an interpreter like this one. It imports nothing of the folder that the user is
    in, who may have a random.py there, unless that is the checkout with the packages themselves."""
    alone = () if os.path.samefile(os.curdir, PACKAGES) else ("-P",)
    return [sys.executable, *alone, "-m", module]


def ignore_signals() -> None:
    """Ignores what is sent to the whole process group; the control process ends its children in order."""
    _set_signals(signal.SIG_IGN)


def heed_signals() -> None:
    """Ctrl-C and the like end this process, which was started by hand, at once."""
    _set_signals(signal.SIG_DFL)


def _set_signals(action: signal.Handlers) -> None:
    for number in TO_ALL:
        signal.signal(number, action)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_ALL)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """What is started in this block gets none of these signals before it says what it makes of them. Nothing is awaited
    in it: the thread has one mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_ALL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """Ends this process soon after its parent process `parent` has died."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    """Ends this process once its parent is gone: on systems other than Linux, and if the parent died before
    `die_with`."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
