"""Who did what, until it is written: what keys and tenants did, and what was refused to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

HOUR = 3600
MOST_WAITING = 1000
"""Different deeds that wait to be written; what comes beyond them counts as OTHERS."""
OTHERS = "(others)"


class Deed(NamedTuple):
    """What is counted together: the same by the same within an hour since the epoch. `tenant`, `key`: names and ids of
    who did it; "": nobody that is known."""

    hour: int
    tenant: str
    key: str
    action: str
    subject: str


@dataclass
class Times:
    """How often, first and last, in seconds since the epoch."""

    first: float
    last: float
    count: int = 1


class AuditTrail:
    """Takes notes on one thread; another one may take them from it."""

    def __init__(self, on_note: Callable[[], None] | None = None, clock: Callable[[], float] = time.time) -> None:
        """`on_note` hears that there is something to take; None: nobody keeps notes, and none are taken."""
        self._on_note = on_note
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[Deed, Times] = {}

    def note(self, tenant: str, key: str, action: str, subject: str) -> None:
        """Somebody did something."""
        if self._on_note is None:
            return
        now = self._clock()
        deed = Deed(int(now // HOUR), tenant, key, action, subject)
        with self._lock:
            if deed not in self._waiting and len(self._waiting) >= MOST_WAITING:
                deed = Deed(deed.hour, OTHERS, "", action, OTHERS)
            if found := self._waiting.get(deed):
                found.last, found.count = now, found.count + 1
            else:
                self._waiting[deed] = Times(now, now)
        self._on_note()

    def take(self) -> dict[Deed, Times]:
        """What was noted since the last time."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return waiting
