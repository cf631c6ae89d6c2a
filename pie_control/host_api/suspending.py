"""Host functions that may suspend the guest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..sandbox.fibers import SUSPEND
from .guest import Guest

F = TypeVar("F", bound=Callable[..., Any])

_marked: set[Callable[..., Any]] = set()


def suspending(function: F) -> F:
    """The function may return SUSPEND."""
    _marked.add(function)
    return function


def is_suspending(function: Callable[..., Any]) -> bool:
    return function in _marked


def short_or_aside(guest: Guest, is_short: bool, work: Callable[[], Any]) -> Any:
    """What `work` gives. Unless it is short, it runs on a thread, and the guest is suspended meanwhile."""
    return work() if is_short else guest.inferlet.waits.run_aside(work)


def when_done(guest: Guest, future: int, take: Callable[[], Any]) -> Any:
    """What `take` gives once a future is done; the guest is suspended until then."""
    if guest.futures.done((future,)):
        return take()
    guest.inferlet.waits.await_futures([future], lambda _done: take())
    return SUSPEND
