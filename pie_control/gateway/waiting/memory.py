"""Whether there is memory for one more request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

SPARE = 0.1
"""This part of the KV pages is left: what is served will need more than it has now."""
LOOK_SECONDS = 0.05
"""What a look has found counts for so long: it may have to count the pages of all exports."""


class Pages(Protocol):
    """A server."""

    def has_spare_pages(self, share: float) -> bool:
        """Whether a model has so much of its KV pages for further inferlets."""


class MemoryLook:
    """Looks at the KV pages of a server, now and then. `clock` is in seconds."""

    def __init__(self, server: Pages, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._found = True
        self._until = 0.0

    def __call__(self) -> bool:
        now = self._clock()
        if now >= self._until:
            self._found = self._server.has_spare_pages(SPARE)
            self._until = now + LOOK_SECONDS
        return self._found
