"""What the program dropped without closing it.

Python may drop an object at any point: in the middle of another call to the host, or in a collection of garbage while
the books of the SDK are half written. So a finalizer only puts the object on a list. `give_back` closes what is on it,
where the books are in order: before an operation of a context, before an allocation, and before the inferlet waits.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Protocol

from inferlet_sdk import bindings
from inferlet_sdk.errors import PieError


class Closable(Protocol):
    """A holder of something that the host keeps for the inferlet."""

    def close(self) -> None:
        """Gives it back. Idempotent."""


_dropped: deque[tuple[object, Closable]] = deque()


def drop(thing: Closable, host: object, dropped: deque[tuple[object, Closable]] = _dropped) -> None:
    """For `__del__`: `thing` was dropped; `host` is the `bindings.host` of what it holds.

    Calls nothing and takes no lock. (`dropped` is a default because globals are gone when the interpreter ends.)
    """
    dropped.append((host, thing))


def give_back() -> None:
    """Closes what was dropped."""
    while _dropped:
        _close_next()


def _close_next() -> None:
    host, thing = _dropped.popleft()
    if host is bindings.host:  # else it belongs to a rehearsal, an earlier launch, or another test
        with suppress(PieError):  # nobody is there to be told
            thing.close()
