"""When a worker that was lost is started again: at once, then after pauses that double. Pure; `now` is an argument."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 300.0
STEADY_SECONDS = 60.0
"""A worker that has served as long is trusted again: it is restarted at once, and its tries are counted anew."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A worker that does not serve. `next_try_seconds`: until it is started again; 0: that is under way."""

    tries: int  # to start it again, since it last served well
    next_try_seconds: float
    reason: str  # of the last failure

    def __str__(self) -> str:
        when = f"next try in {self.next_try_seconds:.0f} s" if self.next_try_seconds else "under way now"
        times = "once" if self.tries == 1 else f"{self.tries} times"
        return f"restarting, tried {times}, {when}; last reason: {self.reason}"


class Restarts:
    """Counts the tries to start one worker again, with pauses of at most `longest_pause` seconds between them."""

    def __init__(self, longest_pause: float = LONGEST_PAUSE_SECONDS) -> None:
        self._longest_pause = longest_pause
        self._tries = 0
        self._pause = FIRST_PAUSE_SECONDS / 2  # before the next try, unless it is the first
        self._next = 0.0  # time of the next try
        self._reason = ""
        self._serving_since: float | None = None

    def serves(self, now: float) -> None:
        """The worker serves."""
        self._serving_since = now

    def failed(self, now: float, reason: str) -> float:
        """The worker was lost, or could not be started. Seconds until it is to be started again."""
        if self._serving_since is not None and now - self._serving_since >= STEADY_SECONDS:
            self._tries, self._pause = 0, FIRST_PAUSE_SECONDS / 2
        self._serving_since = None
        self._reason = reason
        pause = self._pause if self._tries else 0.0
        self._next = now + pause
        return pause

    def try_begins(self) -> None:
        """The worker is being started again."""
        self._tries += 1
        self._pause = min(2 * self._pause, self._longest_pause)

    def outage(self, now: float) -> Outage:
        """For a worker that does not serve."""
        return Outage(self._tries, max(0.0, self._next - now), self._reason)
