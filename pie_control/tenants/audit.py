"""Who did what, until it is written: what keys and tenants did, and what was refused to them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

HOUR = 3600
MOST_OF_HOUR = 500
"""Different deeds of an hour that are kept of each key, of each tenant without one, and of all strangers together. What
comes beyond them counts as OTHERS: nobody makes so many that those before are forgotten."""
OTHERS = "(others)"
MOST_SUBJECT = 256
"""Characters of a subject."""


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
        self._hour = 0
        self._of_hour = defaultdict[tuple[str, str], set[tuple[str, str]]](set)  # deeds, by tenant and key

    def note(self, tenant: str, key: str, action: str, subject: str) -> None:
        """Somebody did something."""
        if self._on_note is None:
            return
        now = self._clock()
        deed = Deed(int(now // HOUR), tenant, key, action, self._kept(int(now // HOUR), tenant, key, action, subject))
        with self._lock:
            if found := self._waiting.get(deed):
                found.last, found.count = now, found.count + 1
            else:
                self._waiting[deed] = Times(now, now)
        self._on_note()

    def _kept(self, hour: int, tenant: str, key: str, action: str, subject: str) -> str:
        """The subject as it is kept."""
        if hour != self._hour:
            self._hour = hour
            self._of_hour.clear()
        known, deed = self._of_hour[tenant, key], (action, subject[:MOST_SUBJECT])
        if deed not in known and len(known) >= MOST_OF_HOUR:
            return OTHERS
        known.add(deed)
        return deed[1]

    def take(self) -> dict[Deed, Times]:
        """What was noted since the last time."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        return waiting
