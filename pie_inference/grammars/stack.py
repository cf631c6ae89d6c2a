"""Threads with a deep stack, for what calls itself once for each level of a text of a guest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STACK = 256 << 20
"""Bytes; only what is used of it takes memory."""

_lock = threading.Lock()


@contextmanager
def deep_stack() -> Iterator[None]:
    """Threads that are started within have a stack of `STACK` bytes."""
    with _lock:
        before = threading.stack_size(STACK)
        try:
            yield
        finally:
            threading.stack_size(before)


def start_deep(work: Callable[[], object]) -> threading.Thread:
    """Calls `work` on a thread with a deep stack, which does not keep the process alive."""
    thread = threading.Thread(target=work, name="grammar", daemon=True)
    with deep_stack():
        thread.start()
    return thread
