"""What is measured of HTTP requests: how many, how they ended, and how long they took."""

from __future__ import annotations

from collections import Counter

from .histogram import FIRST_SECONDS, Histogram


class HttpRequests:
    """By handler, which is the route as it is declared, so a path that somebody makes up is never a label."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, str]] = Counter()  # by handler, method and class of status, as 2xx
        self.seconds: dict[str, Histogram] = {}  # by handler

    def ended(self, handler: str, method: str, status: int, seconds: float) -> None:
        """A request was answered to its end."""
        self.answered[handler, method, f"{status // 100}xx"] += 1
        if handler not in self.seconds:
            self.seconds[handler] = Histogram(FIRST_SECONDS)
        self.seconds[handler].observe(seconds)
