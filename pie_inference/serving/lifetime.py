"""Ties the worker's life to the control process's: Ctrl-C is the parent's to handle, its death ends the worker."""

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
    """A Ctrl-C in the terminal reaches the whole process group; the control process ends the worker in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def die_with(parent: int) -> None:
    """Ends this process soon after process `parent`, which started it, has died."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    """Covers other systems, and a parent that died before the kernel was asked."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
