"""Whether there is memory for one more request."""

from __future__ import annotations

from collections.abc import Callable

SPARE = 0.1
"""This part of the KV pages is left: what is served will need more than it has now."""
LOOK_SECONDS = 0.05
"""What a look has found counts for so long: it may have to count the pages of all exports."""


class MemoryLook:
    """Looks at the KV pages of a server, now and then. `has_spare_pages`: whether a model has such a part of them for
    further inferlets. `clock` is in seconds."""

    def __init__(self, has_spare_pages: Callable[[float], bool], clock: Callable[[], float]) -> None:
        self._has_spare_pages = has_spare_pages
        self._clock = clock
        self._found = True
        self._until = 0.0

    def __call__(self) -> bool:
        now = self._clock()
        if now >= self._until:
            self._found = self._has_spare_pages(SPARE)
            self._until = now + LOOK_SECONDS
        return self._found
