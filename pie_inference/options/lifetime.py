"""Ties the life of a child process to that of its parent: it handles Ctrl-C, and its death ends the child."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5


def ignore_interrupts() -> None:
    """Ignores Ctrl-C, which a terminal sends to the whole process group; the control process ends its children in
    order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def heed_interrupts() -> None:
    """Ctrl-C ends this process, which was started by hand, at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
