"""When a wave is sent (paper, section 6.1 and Table 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class DispatchState(NamedTuple):
    """What a policy looks at."""

    queues: int  # that hold commands
    commands: int  # in them
    since: float  # seconds; when the first of them began to wait, or the last wave was sent
    in_flight: int  # waves
    expected: int  # inferlets of the waves in flight that have issued nothing further yet


class DispatchPolicy(Protocol):
    """Decides when a wave is sent and how large it may be."""

    @property
    def max_commands(self) -> int | None:
        """Commands in one wave; None: as many as the worker's limits allow."""
        ...

    def should_send(self, state: DispatchState, now: float) -> bool:
        """Called only while commands wait."""
        ...

    def deadline(self, state: DispatchState) -> float | None:
        """When to ask again though nothing happened; None: not before something happens."""
        ...


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Work-conserving: an idle worker gets what there is. The caller asks only when every inferlet waits.

    While a wave runs, the next one is sent only if the queues that could fill it clearly outnumber the inferlets that
    are about to return; otherwise programs that look at every token would split into alternating half batches for ever.
    """

    max_in_flight: int = 2
    surplus: int = 4
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        if state.in_flight == 0:
            return True
        return state.in_flight < self.max_in_flight and state.queues > self.surplus * state.expected

    def deadline(self, state: DispatchState) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Eager:
    """No batching: every command alone, as soon as the worker can take it."""

    max_in_flight: int = 2
    max_commands: int = 1

    def should_send(self, state: DispatchState, now: float) -> bool:
        return state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class KOnly:
    """Waits for `k` commands. With fewer it sends after `patience` seconds: no more may come before these are done."""

    k: int
    patience: float = 0.05
    max_in_flight: int = 2
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        enough = state.commands >= self.k or now - state.since >= self.patience
        return enough and state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return state.since + self.patience


@dataclass(frozen=True, slots=True)
class TOnly:
    """Sends what has gathered every `seconds`."""

    seconds: float
    max_in_flight: int = 2
    max_commands: None = None

    def should_send(self, state: DispatchState, now: float) -> bool:
        return now - state.since >= self.seconds and state.in_flight < self.max_in_flight

    def deadline(self, state: DispatchState) -> float | None:
        return state.since + self.seconds
